"""Lifetimes in small programs whose every array is known."""

from outlay.analysis.hlo.live_buffers import live_buffers
from outlay.analysis.hlo.parse import parse_hlo

KIB = 1024  # of an f32[256]


def lifetimes(text):
    """By instruction the bytes and the first and last instruction during which they are held."""
    live = live_buffers(parse_hlo(text))
    names = [one.name for _, one in live.points]
    return {
        buffer.instruction.name: (buffer.kind, buffer.num_bytes, names[buffer.begin], names[buffer.end])
        for buffer in live.buffers
    }


STRAIGHT = """HloModule straight, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY %main (w: f32[256], x: f32[256]) -> (f32[256], f32[]) {
  %w = f32[256] parameter(0)
  %x = f32[256] parameter(1)
  %a = f32[256] add(%w, %x)
  %b = f32[256] tanh(%a)
  %seen = f32[16,16] bitcast(%b)
  %c = f32[16,16] dot(%seen, %seen), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %d = f32[256] bitcast(%c)
  %new = f32[256] multiply(%d, %b)
  %loss = f32[] reduce(%new), to_apply=%sum
  ROOT %out = (f32[256], f32[]) tuple(%new, %loss)
}
"""


def test_what_ends_is_written_over_and_outputs_lie_with_the_caller():
    assert lifetimes(STRAIGHT) == {
        "w": ("argument", KIB, "a", "out"),
        "x": ("argument", KIB, "a", "out"),
        "out": ("output", 4, "a", "out"),  # the loss; the new w lies in the donated one
        "a": ("temporary", KIB, "a", "new"),  # b lies where a did, and is needed until new
        "c": ("temporary", KIB, "c", "new"),  # a product reads what it was given until it is done
    }


LOOP = """HloModule loop, is_scheduled=true

%body (s: (s32[], f32[256], f32[8,256])) -> (s32[], f32[256], f32[8,256]) {
  %s = (s32[], f32[256], f32[8,256]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %h = f32[256] get-tuple-element(%s), index=1
  %all = f32[8,256] get-tuple-element(%s), index=2
  %inner = f32[512] concatenate(%h, %h), dimensions={0}
  %half = f32[256] slice(%inner), slice={[0:256]}
  %row = f32[1,256] bitcast(%half)
  %put = f32[8,256] dynamic-update-slice(%all, %row, %i, %i)
  %next = s32[] add(%i, %i)
  ROOT %r = (s32[], f32[256], f32[8,256]) tuple(%next, %half, %put)
}

%cond (s.1: (s32[], f32[256], f32[8,256])) -> pred[] {
  %s.1 = (s32[], f32[256], f32[8,256]) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  ROOT %less = pred[] compare(%i.1, %i.1), direction=LT
}

ENTRY %main (x: f32[256]) -> f32[8,256] {
  %x = f32[256] parameter(0)
  %zero = s32[] add(%x, %x)
  %start = f32[256] copy(%x)
  %filled = f32[8,256] broadcast(%zero), dimensions={}
  %init = (s32[], f32[256], f32[8,256]) tuple(%zero, %start, %filled)
  %while = (s32[], f32[256], f32[8,256]) while(%init), condition=%cond, body=%body
  %result = f32[8,256] get-tuple-element(%while), index=2
  ROOT %last = f32[8,256] negate(%result)
}
"""


def test_the_state_of_a_loop_lies_in_one_place_and_what_a_round_needs_ends_with_it():
    lives = lifetimes(LOOP)
    assert lives["put"] == ("temporary", 8 * KIB, "filled", "last")  # known by what is written in the loop
    assert lives["half"] == ("temporary", KIB, "start", "r")
    assert lives["inner"] == ("temporary", 2 * KIB, "inner", "half")
    assert lives["last"] == ("output", 8 * KIB, "zero", "last")
    assert "filled" not in lives


BACKGROUND = """HloModule background, is_scheduled=true

ENTRY %main (x: f32[32]) -> f32[256] {
  %x = f32[32] parameter(0)
  %go = (f32[32], f32[256]) all-gather-start(%x), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %other = f32[64] concatenate(%x, %x), dimensions={0}
  %more = f32[64] exponential(%other)
  %whole = f32[256] all-gather-done(%go)
  %host = f32[64]{0:S(5)} copy(%more)
  ROOT %y = f32[256] cosine(%whole)
}
"""


def test_what_runs_in_the_background_holds_its_result_until_it_is_read_and_the_host_is_not_the_device():
    assert lifetimes(BACKGROUND) == {
        "x": ("argument", 128, "go", "y"),
        "y": ("output", KIB, "go", "y"),
        "go": ("temporary", KIB, "go", "y"),
        "other": ("temporary", 256, "other", "host"),
    }


def test_odd_programs_are_followed_as_far_as_they_go():
    text = STRAIGHT.replace("add(%w, %x)", "while(%nothing), body=%none, condition=%none")
    assert lifetimes(text)["w"] == ("argument", KIB, "a", "out")
    assert live_buffers(parse_hlo("HloModule empty, is_scheduled=true\n\nENTRY %main () -> f32[] {\n}\n")).points == ()
