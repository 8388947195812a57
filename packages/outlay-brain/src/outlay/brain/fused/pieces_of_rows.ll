; The pieces of all functions, numbered one function after the other; the function of a piece; all pieces by one
; thread.

define internal i64 @NAME_num_rows(ptr %arguments, i64 %k) {
  %first_at = getelementptr [NUM_FUNCTIONS x $ENTRY], ptr @NAME_table, i64 0, i64 %k, i32 1
  %first = load i64, ptr %first_at
  %array_at = getelementptr ptr, ptr %arguments, i64 %first
  %array = load ptr, ptr %array_at
  %dims_at = getelementptr i8, ptr %array, i64 40
  %dims = load ptr, ptr %dims_at
  %num_rows = load i64, ptr %dims
  ret i64 %num_rows
}

define internal i64 @NAME_num_pieces(ptr %arguments, i64 %k) {
  %num_rows = call i64 @NAME_num_rows(ptr %arguments, i64 %k)
  %size_at = getelementptr [NUM_FUNCTIONS x $ENTRY], ptr @NAME_table, i64 0, i64 %k, i32 3
  %size = load i64, ptr %size_at
  %before_last = sub i64 %size, 1
  %rounded_up = add i64 %num_rows, %before_last
  %num_pieces = udiv i64 %rounded_up, %size
  ret i64 %num_pieces
}

define internal i64 @NAME_all_pieces(ptr %arguments) {
  br label %functions
functions:
  %k = phi i64 [0, %0], [%next_k, %count]
  %total = phi i64 [0, %0], [%next_total, %count]
  %is_function = icmp ult i64 %k, NUM_FUNCTIONS
  br i1 %is_function, label %count, label %end
count:
  %num_pieces = call i64 @NAME_num_pieces(ptr %arguments, i64 %k)
  %next_total = add i64 %total, %num_pieces
  %next_k = add i64 %k, 1
  br label %functions
end:
  ret i64 %total
}

define internal void @NAME_piece(ptr %arguments, ptr %results, i64 %piece) {
  br label %functions
functions:
  %k = phi i64 [0, %0], [%next_k, %other]
  %left = phi i64 [%piece, %0], [%next_left, %other]
  %num_pieces = call i64 @NAME_num_pieces(ptr %arguments, i64 %k)
  %is_here = icmp ult i64 %left, %num_pieces
  br i1 %is_here, label %compute, label %other
other:
  %next_left = sub i64 %left, %num_pieces
  %next_k = add i64 %k, 1
  br label %functions
compute:
  %entry = getelementptr [NUM_FUNCTIONS x $ENTRY], ptr @NAME_table, i64 0, i64 %k
  %function = load ptr, ptr %entry
  %argument_at = getelementptr $ENTRY, ptr %entry, i32 0, i32 1
  %argument = load i64, ptr %argument_at
  %result_at = getelementptr $ENTRY, ptr %entry, i32 0, i32 2
  %result = load i64, ptr %result_at
  %size_at = getelementptr $ENTRY, ptr %entry, i32 0, i32 3
  %size = load i64, ptr %size_at
  %its_arguments = getelementptr ptr, ptr %arguments, i64 %argument
  %its_results = getelementptr ptr, ptr %results, i64 %result
  %num_rows = call i64 @NAME_num_rows(ptr %arguments, i64 %k)
  %first = mul i64 %left, %size
  %after = add i64 %first, %size
  %last = call i64 @llvm.umin.i64(i64 %after, i64 %num_rows)
  call void %function(ptr %its_arguments, ptr %its_results, i64 %first, i64 %last)
  ret void
}

define internal void @NAME_alone(ptr %arguments, ptr %results, i64 %num_pieces, i64 %turn) {
  %is_backwards = icmp ne i64 %turn, 0
  br label %pieces
pieces:
  %done = phi i64 [0, %0], [%next_done, %compute]
  %is_left = icmp ult i64 %done, %num_pieces
  br i1 %is_left, label %compute, label %end
compute:
  %next_done = add i64 %done, 1
  %from_last = sub i64 %num_pieces, %next_done
  %piece = select i1 %is_backwards, i64 %from_last, i64 %done
  call void @NAME_piece(ptr %arguments, ptr %results, i64 %piece)
  br label %pieces
end:
  ret void
}
