//! Ten thousand tasks cost ten times a thousand, counted in operations.

use fluffy_tasks::Limits;

use crate::desk::{Desk, after, in_template, task};

/// Operations of the most expensive step and of all, for so many tasks that
/// are submitted one by one and then run to their end.
fn run(count: u32) -> (u64, u64) {
    let mut desk = Desk::new(Limits::default());
    let mut dearest = 0;
    let mut step = |desk: &mut Desk, take: &mut dyn FnMut(&mut Desk) -> String| {
        let before = desk.scheduler.work();
        let effects = take(desk);
        dearest = dearest.max(desk.scheduler.work() - before);
        effects
    };
    let mut running = std::collections::VecDeque::new();
    let start = |effects: String| {
        let started = effects.split(", ").filter_map(|effect| {
            let number = effect.strip_prefix("start ")?.split_once('#')?.0;
            number.parse::<u32>().ok()
        });
        started.collect::<Vec<_>>()
    };
    for number in 0..count {
        let new = match number % 4 {
            0 => task(number, 3),
            1 => in_template(number, 4, "ai-provider"),
            2 => in_template(number, 4, "code-executor"),
            _ => after(number, &[number - 1, number - 3]),
        };
        let effects = step(&mut desk, &mut |desk| {
            desk.submit(std::slice::from_ref(&new))
        });
        running.extend(start(effects));
    }
    let most = desk.scheduler.unfinished();
    while let Some(number) = running.pop_front() {
        let effects = step(&mut desk, &mut |desk| desk.succeed(number));
        running.extend(start(effects));
    }
    assert_eq!(most, count as usize);
    assert_eq!(desk.scheduler.unfinished(), 0);
    (dearest, desk.scheduler.work())
}

#[test]
fn the_work_of_a_step_does_not_grow_with_the_queue() {
    let (dearest_small, small) = run(1_000);
    let (dearest_large, large) = run(10_000);
    println!("1,000 tasks: {small} operations, {dearest_small} in one step at most");
    println!("10,000 tasks: {large} operations, {dearest_large} in one step at most");
    assert_eq!(dearest_small, dearest_large);
    assert!(large < small * 11, "{small} → {large}");
}
