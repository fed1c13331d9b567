//! The same tables through another compiler and its own layout: both must
//! decide the same about every number and every kind of argument.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

use super::super::*;
use super::{BOTH, PROFILES};
use crate::seccomp::profiles::Test;

type Chain = BTreeMap<i64, Vec<SeccompRule>>;

fn condition(test: &Test) -> SeccompCondition {
    let (argument, operator, value) = match *test {
        Test::Is(argument, value) => (argument, SeccompCmpOp::Eq, value),
        Test::IsNot(argument, value) => (argument, SeccompCmpOp::Ne, value),
        Test::Bits(argument, mask, value) => (argument, SeccompCmpOp::MaskedEq(mask.into()), value),
    };
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into()).unwrap()
}

/// The allowed and the refused, each as a program of its own.
fn stages(rules: &Rules, architecture: Architecture) -> [BpfProgram; 2] {
    let target = match architecture {
        Architecture::X86_64 => TargetArch::x86_64,
        _ => TargetArch::aarch64,
    };
    let number = |call: &str| architecture.number(call).map(i64::from);
    let allowed: Chain = rules
        .allowed
        .iter()
        .copied()
        .flatten()
        .filter_map(|call| Some((number(call)?, Vec::new())))
        .collect();
    let mut refused = Chain::new();
    for refusal in rules.refused.iter().filter(|r| !r.tests.is_empty()) {
        if let Some(number) = number(refusal.call) {
            let rule = SeccompRule::new(refusal.tests.iter().map(condition).collect());
            refused.entry(number).or_default().push(rule.unwrap());
        }
    }
    for refusal in rules.refused.iter().filter(|r| r.tests.is_empty()) {
        if let Some(number) = number(refusal.call) {
            refused.insert(number, Vec::new());
        }
    }
    let compile = |chain, mismatch, matched| {
        let filter = SeccompFilter::new(chain, mismatch, matched, target).unwrap();
        BpfProgram::try_from(filter).unwrap()
    };
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let refusal = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    [
        compile(allowed, unknown, SeccompAction::Allow),
        compile(refused, SeccompAction::Allow, refusal),
    ]
}

/// Our instructions are laid out as everybody's are.
fn as_filter(program: &BpfProgram) -> Filter {
    let program: Vec<Instruction> = program
        .iter()
        .map(|one| Instruction {
            code: one.code,
            if_true: one.jt,
            if_false: one.jf,
            value: one.k,
        })
        .collect();
    Filter {
        length: u16::try_from(program.len()).unwrap(),
        program,
    }
}

/// Arguments around every value that some test compares with.
fn arguments(rules: &Rules) -> Vec<[u64; 6]> {
    let mut values = vec![0_u64, 1, 17, 0xffff_ffff, 0x003d_0f00];
    for test in rules.refused.iter().flat_map(|refusal| refusal.tests) {
        let (Test::Is(_, value) | Test::IsNot(_, value) | Test::Bits(_, _, value)) = *test;
        values.push(u64::from(value));
    }
    values.sort_unstable();
    values.dedup();
    let mut all = Vec::new();
    for first in &values {
        for second in &values {
            // The high half must not matter.
            all.push([*first, *second | 1 << 40, 0, 0, 0, 0]);
            all.push([*first | 1 << 40, 1, *second, 0, 0, 0]);
        }
    }
    all
}

#[test]
fn both_compilers_decide_the_same() {
    for architecture in BOTH {
        for profile in PROFILES {
            for place in [Place::Namespaces, Place::Alone] {
                let rules = Rules::of(profile, place);
                let ours = rules.compile(architecture).unwrap();
                let [allowed, refused] =
                    stages(&rules, architecture).map(|program| as_filter(&program));
                let check = |number, arguments| {
                    let theirs = match interpret(&refused, architecture, number, arguments) {
                        Action::Allow => interpret(&allowed, architecture, number, arguments),
                        refusal => refusal,
                    };
                    let ours = interpret(&ours, architecture, number, arguments);
                    assert_eq!(
                        ours, theirs,
                        "{profile:?} {architecture:?} {number} {arguments:?}"
                    );
                };
                for number in 0..1_000 {
                    check(number, [0; 6]);
                }
                let tested: std::collections::BTreeSet<u32> = rules
                    .refused
                    .iter()
                    .filter(|refusal| !refusal.tests.is_empty())
                    .filter_map(|refusal| architecture.number(refusal.call))
                    .collect();
                let arguments = arguments(&rules);
                for number in tested {
                    for arguments in &arguments {
                        check(number, *arguments);
                    }
                }
            }
        }
    }
}
