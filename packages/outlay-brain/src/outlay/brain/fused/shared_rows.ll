; Several threads: the first asks for the others, computes pieces until none is left, and waits for pieces that others
; have begun.

define internal void @NAME_share(ptr %frame, $ARRAYS, i64 %num_pieces, i64 %num_threads) noinline {
  %asked = alloca { i64, ptr, ptr, ptr, ptr }
  %refused = alloca { i64, ptr, ptr }
  %num_lines = add i64 %num_threads, 1
  %job = call ptr inttoptr (i64 CALLOC to ptr)(i64 %num_lines, i64 $LINE)
  %num_holders_at = getelementptr $JOB, ptr %job, i32 0, i32 1
  store i64 %num_threads, ptr %num_holders_at
  %num_pieces_at = getelementptr $JOB, ptr %job, i32 0, i32 2
  store i64 %num_pieces, ptr %num_pieces_at
  %turn_at = getelementptr $JOB, ptr %job, i32 0, i32 3
  store i64 %turn, ptr %turn_at
  %num_threads_at = getelementptr $JOB, ptr %job, i32 0, i32 4
  store i64 %num_threads, ptr %num_threads_at
  %arguments_at = getelementptr $JOB, ptr %job, i32 0, i32 5
  store ptr %arguments, ptr %arguments_at
  %results_at = getelementptr $JOB, ptr %job, i32 0, i32 6
  store ptr %results, ptr %results_at
  %compute_at = getelementptr $JOB, ptr %job, i32 0, i32 7
  store ptr @NAME_compute, ptr %compute_at
  %job_number = ptrtoint ptr %job to i64
  %api_at = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %api_at
  %destroy_at = getelementptr i8, ptr %api, i64 64
  %destroy = load ptr, ptr %destroy_at
  %schedule_at = getelementptr i8, ptr %api, i64 136
  %schedule = load ptr, ptr %schedule_at
  %context_at = getelementptr i8, ptr %frame, i64 24
  %context = load ptr, ptr %context_at
  br label %others
others:
  %k = phi i64 [1, %0], [%next_k, %other_asked]
  %first_place = phi i64 [0, %0], [%place_after, %other_asked]
  %is_other = icmp ult i64 %k, %num_threads
  br i1 %is_other, label %look, label %own
look:
  %place = phi i64 [%first_place, %others], [%next_place, %offer]
  %is_place = icmp ult i64 %place, NUM_PLACES
  br i1 %is_place, label %offer, label %ask_pool
offer:
  %next_place = add i64 %place, 1
  %place_at = getelementptr [$LINE x i8], ptr inttoptr (i64 PLACES to ptr), i64 %place
  %offered = cmpxchg ptr %place_at, i64 $WAITING, i64 %job_number acq_rel monotonic
  %is_taken = extractvalue { i64, i1 } %offered, 1
  br i1 %is_taken, label %other_asked, label %look
ask_pool:
  store i64 40, ptr %asked
  %asked_extension = getelementptr i8, ptr %asked, i64 8
  store ptr null, ptr %asked_extension
  %asked_context = getelementptr i8, ptr %asked, i64 16
  store ptr %context, ptr %asked_context
  %asked_task = getelementptr i8, ptr %asked, i64 24
  store ptr @NAME_help, ptr %asked_task
  %asked_data = getelementptr i8, ptr %asked, i64 32
  store ptr %job, ptr %asked_data
  %error = call ptr %schedule(ptr %asked)
  %is_refused = icmp ne ptr %error, null
  br i1 %is_refused, label %other_refused, label %other_asked
other_refused:
  store i64 24, ptr %refused
  %refused_extension = getelementptr i8, ptr %refused, i64 8
  store ptr null, ptr %refused_extension
  %refused_error = getelementptr i8, ptr %refused, i64 16
  store ptr %error, ptr %refused_error
  call void %destroy(ptr %refused)
  call void @NAME_leave(ptr %job)
  store i64 1, ptr inttoptr (i64 REFUSED to ptr)
  br label %other_asked
other_asked:
  %place_after = phi i64 [%next_place, %offer], [%place, %ask_pool], [%place, %other_refused]
  %next_k = add i64 %k, 1
  br label %others
own:
  call void @NAME_pieces(ptr %job)
  br label %wait
wait:
  %num_pauses = phi i64 [0, %own], [%more_pauses, %pause_on], [%num_pauses, %yield]
  %num_done = load atomic i64, ptr %job acquire, align 8
  %are_done = icmp eq i64 %num_done, %num_pieces
  br i1 %are_done, label %done, label %wait_on
wait_on:
  %is_long = icmp uge i64 %num_pauses, $LONG_WAIT
  br i1 %is_long, label %yield, label %pause_on
pause_on:
  PAUSE
  %more_pauses = add i64 %num_pauses, 1
  br label %wait
yield:
  call i32 inttoptr (i64 SCHED_YIELD to ptr)()
  br label %wait
done:
  call void @NAME_leave(ptr %job)
  ret void
}

define internal void @NAME_help(ptr %first_job) {
  br label %help
help:
  %job = phi ptr [%first_job, %0], [%next_job, %asked]
  %compute_at = getelementptr $JOB, ptr %job, i32 0, i32 7
  %compute = load ptr, ptr %compute_at
  call void %compute(ptr %job)
  br label %look
look:
  %place = phi i64 [0, %help], [%next_place, %enter]
  %is_place = icmp ult i64 %place, NUM_PLACES
  br i1 %is_place, label %enter, label %end
enter:
  %next_place = add i64 %place, 1
  %place_at = getelementptr [$LINE x i8], ptr inttoptr (i64 PLACES to ptr), i64 %place
  %entered = cmpxchg ptr %place_at, i64 0, i64 $WAITING acq_rel monotonic
  %is_own = extractvalue { i64, i1 } %entered, 1
  br i1 %is_own, label %wait, label %look
wait:
  %num_waits = phi i64 [0, %enter], [%next_num, %wait_on]
  %there = load atomic i64, ptr %place_at acquire, align 8
  %is_asked = icmp ne i64 %there, $WAITING
  br i1 %is_asked, label %asked, label %none_yet
none_yet:
  %patience = load atomic i64, ptr inttoptr (i64 PATIENCE to ptr) monotonic, align 8
  %is_patient = icmp ult i64 %num_waits, %patience
  br i1 %is_patient, label %wait_on, label %give_up
wait_on:
  %next_num = add i64 %num_waits, 1
  PAUSE
  br label %wait
give_up:
  %left = cmpxchg ptr %place_at, i64 $WAITING, i64 0 acq_rel acquire
  %has_left = extractvalue { i64, i1 } %left, 1
  br i1 %has_left, label %end, label %asked
asked:
  %next_number = atomicrmw xchg ptr %place_at, i64 0 acq_rel
  %next_job = inttoptr i64 %next_number to ptr
  br label %help
end:
  ret void
}

define internal void @NAME_compute(ptr %job) {
  call void @NAME_pieces(ptr %job)
  call void @NAME_leave(ptr %job)
  ret void
}

define internal void @NAME_pieces(ptr %job) noinline {
  %num_pieces_at = getelementptr $JOB, ptr %job, i32 0, i32 2
  %num_pieces = load i64, ptr %num_pieces_at
  %turn_at = getelementptr $JOB, ptr %job, i32 0, i32 3
  %turn = load i64, ptr %turn_at
  %is_backwards = icmp ne i64 %turn, 0
  %num_threads_at = getelementptr $JOB, ptr %job, i32 0, i32 4
  %num_threads = load i64, ptr %num_threads_at
  %arguments_at = getelementptr $JOB, ptr %job, i32 0, i32 5
  %arguments = load ptr, ptr %arguments_at
  %results_at = getelementptr $JOB, ptr %job, i32 0, i32 6
  %results = load ptr, ptr %results_at
  %core = THIS_CORE
  %own = zext i32 %core to i64
  br label %cores
cores:
  %k = phi i64 [0, %0], [%next_k, %take]
  %is_core = icmp ult i64 %k, %num_threads
  br i1 %is_core, label %of_core, label %none
of_core:
  %next_k = add i64 %k, 1
  %any_place = add i64 %own, %k
  %place = urem i64 %any_place, %num_threads
  %line = add i64 %place, 1
  %num_taken_at = getelementptr [$LINE x i8], ptr %job, i64 %line
  %pieces_before = mul i64 %num_pieces, %place
  %first_piece = udiv i64 %pieces_before, %num_threads
  %pieces_to = add i64 %pieces_before, %num_pieces
  %last_piece = udiv i64 %pieces_to, %num_threads
  br label %take
take:
  %num_taken = atomicrmw add ptr %num_taken_at, i64 1 monotonic
  %from_first = add i64 %first_piece, %num_taken
  %is_left = icmp ult i64 %from_first, %last_piece
  br i1 %is_left, label %compute, label %cores
compute:
  %not_taken = sub i64 %last_piece, %num_taken
  %from_last = sub i64 %not_taken, 1
  %piece = select i1 %is_backwards, i64 %from_last, i64 %from_first
  call void @NAME_piece(ptr %arguments, ptr %results, i64 %piece)
  %num_before = atomicrmw add ptr %job, i64 1 release
  br label %take
none:
  ret void
}

define internal void @NAME_leave(ptr %job) noinline {
  %num_holders_at = getelementptr $JOB, ptr %job, i32 0, i32 1
  %num_holders = atomicrmw sub ptr %num_holders_at, i64 1 acq_rel
  %is_last = icmp eq i64 %num_holders, 1
  br i1 %is_last, label %free, label %end
free:
  call void inttoptr (i64 FREE to ptr)(ptr %job)
  br label %end
end:
  ret void
}
