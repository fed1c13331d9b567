//! Commands: what they are given, how they end, and that nothing survives.
//!
//! Most of it runs a real Rust program built for both versions of WASI; what
//! needs an odd program is written as text.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod kit;

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_base::ByteSize;
use fluffy_wasm::{
    Call, CallError, Command, Ended, Finished, Limits, PrepareError, Program, RunError, Stop,
    Value, WasmTier,
};
use kit::probe::{TARGETS, probe};
use kit::{number, patient, permit, program, run, tier, wait};

fn command(arguments: &[&str], limits: Limits) -> Command {
    let mut all = vec!["probe".to_owned()];
    all.extend(arguments.iter().map(ToString::to_string));
    Command {
        arguments: all,
        limits,
        ..Command::default()
    }
}

/// The real program, compiled once for all that is asked of it.
struct Probe {
    tier: WasmTier,
    program: Program,
}

impl Probe {
    fn of(target: &str) -> Self {
        let tier = tier();
        let program = tier.prepare(&probe(target)).unwrap();
        Self { tier, program }
    }

    fn run(&self, command: Command) -> Finished {
        run(&self.tier, &self.program, command)
    }
}

const DONE: Ended = Ended::Exit { code: 0 };

#[test]
fn a_real_program_keeps_every_promise_on_preview_1() {
    every_promise(&Probe::of(TARGETS[0]));
}

#[test]
fn a_real_program_keeps_every_promise_on_preview_2() {
    every_promise(&Probe::of(TARGETS[1]));
}

fn every_promise(probe: &Probe) {
    it_gets_its_arguments_and_input_and_nothing_else(probe);
    a_failure_is_an_exit_and_not_a_stop(probe);
    a_flood_of_output_is_cut_at_the_limit(probe);
    hoarding_memory_ends_with_memory_as_the_reason(probe);
    waiting_in_the_host_is_bounded_by_the_deadline(probe);
    no_connection_leaves_although_the_address_answers(probe);
}

fn it_gets_its_arguments_and_input_and_nothing_else(probe: &Probe) {
    let finished = probe.run(Command {
        stdin: b"from outside".to_vec(),
        ..command(&["echo", "a b", "$HOME", ""], patient())
    });
    assert_eq!(finished.ended, DONE);
    assert_eq!(finished.stdout, b"a b+$HOME+ from outside\n");
    assert!(finished.stderr.is_empty());
    let finished = probe.run(Command {
        environment: BTreeMap::from([("ONLY".into(), "this=one".into())]),
        ..command(&["variables"], patient())
    });
    assert_eq!(finished.stdout, b"ONLY=this=one;\n");
}

fn a_failure_is_an_exit_and_not_a_stop(probe: &Probe) {
    let finished = probe.run(command(&["unknown"], patient()));
    assert_eq!(finished.ended, Ended::Exit { code: 1 });
    assert_eq!(finished.stderr, b"unknown attempt\n");
}

fn a_flood_of_output_is_cut_at_the_limit(probe: &Probe) {
    let limit = ByteSize(100_000);
    let limits = Limits {
        output: limit,
        ..patient()
    };
    let finished = probe.run(command(&["flood"], limits));
    assert_eq!(finished.ended, Ended::Stopped(Stop::Output { limit }));
    assert_eq!(finished.stdout, vec![b'x'; 100_000]);
}

fn hoarding_memory_ends_with_memory_as_the_reason(probe: &Probe) {
    let limit = ByteSize(16 << 20);
    let limits = Limits {
        memory: limit,
        ..patient()
    };
    let finished = probe.run(command(&["hoard"], limits));
    assert_eq!(finished.ended, Ended::Stopped(Stop::Memory { limit }));
    assert!(finished.usage.memory.0 <= limit.0);
}

fn waiting_in_the_host_is_bounded_by_the_deadline(probe: &Probe) {
    let limits = Limits {
        time: Duration::from_millis(200),
        ..patient()
    };
    let finished = probe.run(command(&["sleep", "600000"], limits));
    assert_eq!(finished.ended, Ended::Stopped(Stop::Deadline));
    assert!(finished.usage.took < Duration::from_secs(60));
    // Control: with time enough it sleeps to the end.
    let finished = probe.run(command(&["sleep", "20"], patient()));
    assert_eq!(finished.stdout, b"slept\n");
}

fn no_connection_leaves_although_the_address_answers(probe: &Probe) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Control: from outside the tier it answers.
    std::net::TcpStream::connect(address).unwrap();
    listener.accept().unwrap();
    listener.set_nonblocking(true).unwrap();
    let finished = probe.run(command(&["connect", &address.to_string()], patient()));
    assert_eq!(finished.ended, Ended::Exit { code: 1 });
    let error = listener.accept().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_module_exits_with_the_code_it_says() {
    let tier = tier();
    let text = r#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 0)
        (func (export "_start") (call $exit (i32.const 42))))"#;
    let finished = run(&tier, &program(&tier, text), Command::default());
    assert_eq!(finished.ended, Ended::Exit { code: 42 });
    let quiet = r#"(module (func (export "_start")))"#;
    let finished = run(&tier, &program(&tier, quiet), Command::default());
    assert_eq!(finished.ended, DONE);
}

#[test]
fn fuel_and_deadline_stop_a_command_too() {
    let tier = tier();
    let spin = program(&tier, r#"(module (func (export "_start") (loop (br 0))))"#);
    let ended = |limits| {
        let command = Command {
            limits,
            ..Command::default()
        };
        run(&tier, &spin, command).ended
    };
    let fuel = Limits {
        fuel: Some(1_000_000),
        ..patient()
    };
    assert_eq!(ended(fuel), Ended::Stopped(Stop::Fuel));
    let time = Limits {
        time: Duration::from_millis(50),
        ..patient()
    };
    assert_eq!(ended(time), Ended::Stopped(Stop::Deadline));
}

#[test]
fn nothing_survives_from_one_call_into_another() {
    let tier = tier();
    let counts = r#"(module (global $g (mut i32) (i32.const 0)) (memory 1)
        (func (export "run") (result i32)
            (global.set $g (i32.add (global.get $g) (i32.const 1)))
            (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (global.get $g)))
            (i32.load (i32.const 8))))"#;
    for _ in 0..50 {
        assert_eq!(number(&tier, counts, patient()), 1);
    }
    // A command fills its memory and the next must find zeroes in all of it.
    let stale = r#"(module
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 16)
        (func (export "_start") (local $at i32)
            (loop
                (if (i64.ne (i64.load (local.get $at)) (i64.const 0))
                    (then (call $exit (i32.const 9))))
                (local.set $at (i32.add (local.get $at) (i32.const 8)))
                (br_if 0 (i32.lt_u (local.get $at) (i32.const 1048576))))
            (memory.fill (i32.const 0) (i32.const 170) (i32.const 1048576))))"#;
    let stale = program(&tier, stale);
    for _ in 0..20 {
        assert_eq!(run(&tier, &stale, Command::default()).ended, DONE);
    }
}

#[test]
fn plain_functions_take_and_return_integers() {
    let tier = tier();
    let text = r#"(module
        (func (export "add") (param i32 i64) (result i64)
            (i64.add (i64.extend_i32_s (local.get 0)) (local.get 1)))
        (func (export "half") (param f32) (result f32) (local.get 0)))"#;
    let program = program(&tier, text);
    let call = |function: &str, arguments: Vec<Value>| {
        let call = Call {
            function: function.into(),
            arguments,
            limits: patient(),
        };
        tier.call(permit(), &program, &call)
    };
    let sum = call("add", vec![Value::I32(-2), Value::I64(44)]).unwrap();
    assert_eq!(sum.values, [Value::I64(42)]);
    let wrong = [
        call("add", vec![Value::I64(1), Value::I64(1)]),
        call("add", vec![Value::I32(1)]),
        call("half", vec![Value::I32(1)]),
        call("missing", vec![]),
    ];
    for result in wrong {
        assert!(
            matches!(result, Err(CallError::Signature { .. })),
            "{result:?}"
        );
    }
}

#[test]
fn a_permit_for_something_else_does_not_run_anything() {
    let tier = tier();
    let program = program(
        &tier,
        r#"(module (func (export "_start")) (func (export "run")))"#,
    );
    let ran = wait(tier.run(
        fluffy_test_kit::permit("secret.use", Some("wasm")),
        &program,
        Command::default(),
    ));
    assert!(matches!(ran, Err(RunError::Permit { action }) if action == "secret.use"));
    let called = tier.call(
        fluffy_test_kit::permit("secret.use", Some("wasm")),
        &program,
        &Call::default(),
    );
    assert!(matches!(called, Err(CallError::Permit { .. })));
    // Control: the same with the right one.
    assert_eq!(run(&tier, &program, Command::default()).ended, DONE);
}

#[test]
fn what_is_neither_or_wants_more_is_refused_when_prepared() {
    let tier = tier();
    let prepare = |text: &str| tier.prepare(&wat::parse_str(text).unwrap());
    let import = r#"(module (import "host" "open" (func)) (func (export "_start")))"#;
    assert!(matches!(prepare(import), Err(PrepareError::Import { .. })));
    let reactor = r#"(module (import "host" "open" (func)))"#;
    assert!(matches!(
        prepare(reactor),
        Err(PrepareError::NotRunnable { .. })
    ));
    assert!(matches!(
        prepare("(component)"),
        Err(PrepareError::NotRunnable { .. })
    ));
    let invalid = tier.prepare(b"\0asm\x01\0\0\0\x0a\x03\x01\x01\x00");
    assert!(matches!(
        invalid,
        Err(PrepareError::Compile { .. } | PrepareError::Examine { .. })
    ));
    let library = program(&tier, r#"(module (func (export "run")))"#);
    let ran = wait(tier.run(permit(), &library, Command::default()));
    assert!(matches!(ran, Err(RunError::NotACommand { .. })));
    let start = r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))
        (func (export "_start")) (func (export "run")))"#;
    let called = kit::call(&tier, start, patient());
    assert!(matches!(called, Err(CallError::NotPlain { .. })));
}
