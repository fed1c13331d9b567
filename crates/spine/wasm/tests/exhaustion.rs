//! Attack 77: programs that want all of the machine, each with its control.
//!
//! The control is the same program with that one limit out of reach; then it
//! does what the limit was for, as far as the test lets it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod kit;

use std::time::{Duration, Instant};

use fluffy_base::ByteSize;
use fluffy_wasm::examine::ExamineError;
use fluffy_wasm::{Bounds, Limits, PrepareError, Stop, TrapKind, WasmTier};
use kit::{call, number, patient, program, stopped, tier};

/// Never ends.
const SPIN: &str = r#"(module (func (export "run") (loop (br 0))))"#;

/// Ends after two million rounds.
const ROUNDS: &str = r#"(module (func (export "run") (result i32) (local i32)
    (loop (local.set 0 (i32.add (local.get 0) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get 0) (i32.const 2000000))))
    (local.get 0)))"#;

#[test]
fn a_loop_ends_by_fuel_and_then_none_is_left() {
    let tier = tier();
    let limits = Limits {
        fuel: Some(1_000_000),
        time: Duration::from_secs(60),
        ..Limits::default()
    };
    let (stop, usage) = stopped(&tier, SPIN, limits);
    assert_eq!((stop, usage.fuel_left), (Stop::Fuel, Some(0)));
    // Control: without the limit the same work is done to its end.
    assert_eq!(stopped(&tier, ROUNDS, limits).0, Stop::Fuel);
    assert_eq!(number(&tier, ROUNDS, patient()), 2_000_000);
}

#[test]
fn remaining_fuel_is_told_and_is_the_same_each_time() {
    let tier = tier();
    let limits = Limits {
        fuel: Some(100_000_000),
        ..patient()
    };
    let left = |_| call(&tier, ROUNDS, limits).unwrap().usage.fuel_left;
    let left: Vec<_> = (0..2).map(left).collect();
    assert_eq!(left[0], left[1]);
    assert!(left[0].is_some_and(|left| left > 0 && left < 100_000_000));
    let unlimited = call(&tier, ROUNDS, patient()).unwrap();
    assert_eq!(unlimited.usage.fuel_left, None);
}

#[test]
fn a_loop_ends_by_the_deadline_when_fuel_is_off() {
    let tier = tier();
    let limits = Limits {
        time: Duration::from_millis(100),
        ..patient()
    };
    let start = Instant::now();
    let (stop, usage) = stopped(&tier, SPIN, limits);
    assert_eq!(stop, Stop::Deadline);
    assert!(usage.took >= limits.time);
    assert!(start.elapsed() < Duration::from_secs(20));
    // Control: with more time it spins on for longer.
    let longer = Limits {
        time: Duration::from_millis(400),
        ..limits
    };
    let (stop, usage) = stopped(&tier, SPIN, longer);
    assert_eq!(stop, Stop::Deadline);
    assert!(usage.took >= longer.time);
}

#[test]
fn a_start_function_that_spins_is_stopped_both_ways() {
    let text = r#"(module (func $s (loop (br 0))) (start $s) (func (export "run")))"#;
    let tier = tier();
    let fuel = Limits {
        fuel: Some(100_000),
        ..patient()
    };
    assert_eq!(stopped(&tier, text, fuel).0, Stop::Fuel);
    let time = Limits {
        time: Duration::from_millis(50),
        ..patient()
    };
    assert_eq!(stopped(&tier, text, time).0, Stop::Deadline);
}

/// Grows by 16 pages (1 MiB) at a time, at most `steps` times; says how often it did.
fn growing(steps: u32) -> String {
    format!(
        r#"(module (memory 1) (func (export "run") (result i32) (local i32)
        (loop (if (i32.ne (memory.grow (i32.const 16)) (i32.const -1)) (then
            (local.set 0 (i32.add (local.get 0) (i32.const 1)))
            (br_if 1 (i32.lt_u (local.get 0) (i32.const {steps}))))))
        (local.get 0)))"#
    )
}

#[test]
fn memory_grows_to_its_limit_and_not_further() {
    let tier = tier();
    let limit = ByteSize(8 << 20);
    let small = Limits {
        memory: limit,
        ..patient()
    };
    let (stop, usage) = stopped(&tier, &growing(64), small);
    assert_eq!(stop, Stop::Memory { limit });
    assert!(usage.memory.0 <= limit.0 && usage.memory.0 > limit.0 - (1 << 20));
    // Control: a larger limit, and it reaches further.
    let large = Limits {
        memory: ByteSize(128 << 20),
        ..patient()
    };
    assert_eq!(number(&tier, &growing(64), large), 64);
}

#[test]
fn several_memories_share_one_limit() {
    let text = r#"(module (memory 20) (memory 20) (func (export "run")))"#;
    let tier = tier();
    let limit = ByteSize(30 << 16);
    let limits = Limits {
        memory: limit,
        ..patient()
    };
    assert_eq!(stopped(&tier, text, limits).0, Stop::Memory { limit });
    let enough = Limits {
        memory: ByteSize(40 << 16),
        ..patient()
    };
    assert_eq!(call(&tier, text, enough).unwrap().usage.memory.0, 40 << 16);
}

#[test]
fn a_program_that_asks_for_everything_at_once_gets_nothing() {
    let text = r#"(module (memory 65536) (func (export "run")))"#;
    let limit = Limits::default().memory;
    let (stop, usage) = stopped(&tier(), text, patient());
    assert_eq!((stop, usage.memory.0), (Stop::Memory { limit }, 0));
}

#[test]
fn tables_grow_to_their_limit_and_not_further() {
    let text = r#"(module (table 1 funcref) (func (export "run") (result i32)
        (drop (table.grow 0 (ref.null func) (i32.const 50000)))
        (table.size 0)))"#;
    let tier = tier();
    let small = Limits {
        table_elements: 1000,
        ..patient()
    };
    let (stop, _) = stopped(&tier, text, small);
    assert_eq!(stop, Stop::Table { limit: 1000 });
    assert_eq!(number(&tier, text, patient()), 50_001);
}

#[test]
fn deep_recursion_is_a_trap_and_not_a_crash() {
    let recurse = |depth: u64| {
        format!(
            r#"(module (func $down (param i64) (result i64)
            (if (result i64) (i64.eqz (local.get 0)) (then (i64.const 7))
                (else (call $down (i64.sub (local.get 0) (i64.const 1))))))
            (func (export "run") (result i64) (call $down (i64.const {depth}))))"#
        )
    };
    let tier = tier();
    let (stop, _) = stopped(&tier, &recurse(1 << 40), patient());
    assert_eq!(stop, Stop::Trapped(TrapKind::StackOverflow));
    // Control: as deep as the stack allows, it returns.
    assert_eq!(number(&tier, &recurse(1000), patient()), 7);
}

#[test]
fn a_compile_bomb_never_reaches_the_compiler() {
    let text = format!("(module {})", "(func)".repeat(100_000));
    let bytes = wat::parse_str(&text).unwrap();
    let start = Instant::now();
    let refused = tier().prepare(&bytes);
    assert!(start.elapsed() < Duration::from_secs(10));
    let Err(PrepareError::Examine { source, .. }) = refused else {
        panic!("it should have been refused: {refused:?}");
    };
    let ExamineError::TooMany { what, found, .. } = source else {
        panic!("for its functions: {source:?}");
    };
    assert_eq!((what, found), ("functions", 100_000));
}

#[test]
fn the_bound_is_what_refuses_and_without_it_the_program_compiles() {
    let text = format!(r#"(module {} (func (export "run")))"#, "(func)".repeat(200));
    let bytes = wat::parse_str(&text).unwrap();
    let tight = Bounds {
        functions: 200,
        ..Bounds::default()
    };
    let tight = WasmTier::start(tight).unwrap();
    assert!(matches!(
        tight.prepare(&bytes),
        Err(PrepareError::Examine { .. })
    ));
    assert!(tier().prepare(&bytes).is_ok());
}

#[test]
fn a_huge_data_segment_is_refused_by_size_and_by_memory() {
    let data = "a".repeat(3 << 20);
    let text =
        format!(r#"(module (memory 64) (data (i32.const 0) "{data}") (func (export "run")))"#);
    let bytes = wat::parse_str(&text).unwrap();
    let small = Bounds {
        size: ByteSize(1 << 20),
        ..Bounds::default()
    };
    let refused = WasmTier::start(small).unwrap().prepare(&bytes);
    let Err(PrepareError::Examine { source, .. }) = refused else {
        panic!("it should have been refused: {refused:?}");
    };
    assert!(matches!(
        source,
        ExamineError::TooLarge { what: "file", .. }
    ));
    // A segment larger than its memory can't be written anywhere.
    let outside =
        r#"(module (memory 1) (data (i32.const 65530) "0123456789") (func (export "run")))"#;
    let (stop, _) = stopped(&tier(), outside, patient());
    assert_eq!(stop, Stop::Trapped(TrapKind::MemoryOutOfBounds));
}

#[test]
fn memories_and_tables_are_counted_before_they_are_made() {
    let memories = format!(
        r#"(module {} (func (export "run")))"#,
        "(memory 0)".repeat(40)
    );
    let bytes = wat::parse_str(&memories).unwrap();
    let refused = tier().prepare(&bytes);
    assert!(matches!(
        refused,
        Err(PrepareError::Examine {
            source: ExamineError::TooMany {
                what: "memories",
                ..
            },
            ..
        })
    ));
}

#[test]
fn each_trap_says_which_it_is() {
    let tier = tier();
    let cases = [
        ("unreachable", TrapKind::Unreachable),
        (
            "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
            TrapKind::DivisionByZero,
        ),
        (
            "(drop (i32.div_s (i32.const -2147483648) (i32.const -1)))",
            TrapKind::IntegerOverflow,
        ),
        (
            "(drop (i32.trunc_f32_s (f32.const nan)))",
            TrapKind::BadConversion,
        ),
        (
            "(drop (i32.load (i32.const 70000)))",
            TrapKind::MemoryOutOfBounds,
        ),
        ("(call_indirect (i32.const 9))", TrapKind::TableOutOfBounds),
        ("(call_indirect (i32.const 0))", TrapKind::NullCall),
        (
            "(call_indirect (param i32) (i32.const 1) (i32.const 1))",
            TrapKind::SignatureMismatch,
        ),
    ];
    for (body, kind) in cases {
        let text = format!(
            r#"(module (memory 1) (table 2 funcref) (func $f) (elem (i32.const 1) $f)
            (func (export "run") {body}))"#
        );
        assert_eq!(
            stopped(&tier, &text, patient()).0,
            Stop::Trapped(kind),
            "{body}"
        );
    }
}

#[test]
fn other_calls_go_on_while_one_spins() {
    let tier = tier();
    let spin = program(&tier, SPIN);
    let limits = Limits {
        time: Duration::from_millis(300),
        ..patient()
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let call = fluffy_wasm::Call {
                    function: "run".into(),
                    arguments: vec![],
                    limits,
                };
                assert!(tier.call(kit::permit(), &spin, &call).is_err());
            });
        }
        assert_eq!(number(&tier, ROUNDS, patient()), 2_000_000);
    });
}
