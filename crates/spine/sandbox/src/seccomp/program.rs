//! Programs of the kernel's filter machine, small and quick to install.
//!
//! The kernel runs a filter once for every number there is when it is
//! installed, before each command: so the numbers are searched by halves, not
//! one by one. Pure. A program decides for every call; there is no way out of
//! it but an answer. Next: `interpret` runs it, `super` has the tables.

use super::Architecture;
use super::profiles::Test;

/// Where the call's number lies in what a filter sees.
pub(super) const NUMBER_OFFSET: u32 = 0;
/// Where the architecture's mark lies.
pub(super) const ARCHITECTURE_OFFSET: u32 = 4;
/// Where the first argument lies; eight bytes each, the low half first.
pub(super) const ARGUMENTS_OFFSET: u32 = 16;

pub(super) const LOAD: u16 = 0x20;
pub(super) const AND: u16 = 0x54;
pub(super) const JUMP: u16 = 0x05;
pub(super) const EQUAL: u16 = 0x15;
pub(super) const AT_LEAST: u16 = 0x35;
pub(super) const ANSWER: u16 = 0x06;

/// One instruction, as the kernel reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    pub(super) code: u16,
    pub(super) if_true: u8,
    pub(super) if_false: u8,
    pub(super) value: u32,
}

/// What a filter answers, as the kernel reads it.
pub(super) type Answer = u32;

/// What is decided about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same whatever its arguments are.
    Always(Answer),
    /// One answer where all tests of any of the rules hold, else the other.
    Depends {
        rules: Vec<&'static [Test]>,
        refusal: Answer,
        otherwise: Answer,
    },
}

/// The program for calls in the order of their numbers, without gaps being
/// said: what is not among them gets `unknown`.
pub(super) fn assemble(
    architecture: Architecture,
    calls: &[(u32, Verdict)],
    unknown: Answer,
) -> Vec<Instruction> {
    let mut program = vec![
        step(LOAD, ARCHITECTURE_OFFSET),
        branch(EQUAL, architecture.audit(), 1, 0),
        step(ANSWER, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, NUMBER_OFFSET),
    ];
    if architecture == Architecture::X86_64 {
        // x32 has the same mark; only this bit tells its calls.
        program.extend([
            branch(AT_LEAST, X32_BIT, 0, 1),
            step(ANSWER, libc::SECCOMP_RET_KILL_PROCESS),
        ]);
    }
    program.extend(search(&ranges(calls, unknown)));
    program
}

/// Set in the number of every x32 call.
const X32_BIT: u32 = 0x4000_0000;

/// Numbers from here to the next range's start have this verdict.
struct Range {
    start: u32,
    verdict: Verdict,
}

fn ranges(calls: &[(u32, Verdict)], unknown: Answer) -> Vec<Range> {
    let unknown = Verdict::Always(unknown);
    let mut ranges = vec![Range {
        start: 0,
        verdict: unknown.clone(),
    }];
    let mut add = |start: u32, verdict: &Verdict| match ranges.last_mut() {
        Some(last) if last.verdict == *verdict => {}
        Some(last) if last.start == start => last.verdict = verdict.clone(),
        _ => ranges.push(Range {
            start,
            verdict: verdict.clone(),
        }),
    };
    for (place, (number, verdict)) in calls.iter().enumerate() {
        add(*number, verdict);
        let next = calls.get(place + 1).map(|(number, _)| *number);
        if next != Some(number + 1) {
            add(number + 1, &unknown);
        }
    }
    ranges
}

/// Halves the ranges until one is left.
fn search(ranges: &[Range]) -> Vec<Instruction> {
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    match (lower, upper) {
        (_, []) => Vec::new(),
        ([], [only, ..]) => decide(&only.verdict),
        (lower, [middle, ..]) => {
            let below = search(lower);
            // A jump of its own, because a branch reaches only 255 far.
            let mut program = vec![
                branch(AT_LEAST, middle.start, 0, 1),
                step(JUMP, u32::try_from(below.len()).unwrap_or(u32::MAX)),
            ];
            program.extend(below);
            program.extend(search(upper));
            program
        }
    }
}

fn decide(verdict: &Verdict) -> Vec<Instruction> {
    match verdict {
        Verdict::Always(answer) => vec![step(ANSWER, *answer)],
        Verdict::Depends {
            rules,
            refusal,
            otherwise,
        } => {
            let mut program: Vec<Instruction> = rules
                .iter()
                .flat_map(|tests| refuse(tests, *refusal))
                .collect();
            program.push(step(ANSWER, *otherwise));
            program
        }
    }
}

/// One rule: from the first test that does not hold on to the next rule.
fn refuse(tests: &[Test], refusal: Answer) -> Vec<Instruction> {
    let mut program = vec![step(ANSWER, refusal)];
    for test in tests.iter().rev() {
        // No rule has more than a handful of tests, so this always fits.
        let past = u8::try_from(program.len()).unwrap_or(u8::MAX);
        let mut tested = match *test {
            Test::Is(argument, value) => {
                vec![step(LOAD, offset(argument)), branch(EQUAL, value, 0, past)]
            }
            Test::IsNot(argument, value) => {
                vec![step(LOAD, offset(argument)), branch(EQUAL, value, past, 0)]
            }
            Test::Bits(argument, mask, value) => vec![
                step(LOAD, offset(argument)),
                step(AND, mask),
                branch(EQUAL, value, 0, past),
            ],
        };
        tested.extend(program);
        program = tested;
    }
    program
}

/// Where the low half of an argument lies.
fn offset(argument: u8) -> u32 {
    ARGUMENTS_OFFSET + 8 * u32::from(argument)
}

fn step(code: u16, value: u32) -> Instruction {
    branch(code, value, 0, 0)
}

fn branch(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction {
        code,
        if_true,
        if_false,
        value,
    }
}
