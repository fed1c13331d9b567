//! Looks after the task of an instance: starts it again when it fails, and
//! says so when it fails too often. What runs of it goes on meanwhile.

use std::sync::Arc;

use fluffy_api::node::v1;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Ask, Context, End, Instance, Orders, Says};
use crate::supervise::Failures;

/// Runs an instance until nothing of it is left, again if its task fails.
pub(crate) fn spawn(
    context: Arc<Context>,
    id: String,
    orders: watch::Receiver<Orders>,
    asks: mpsc::Receiver<Ask>,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(supervise(context, id, orders, Arc::new(Mutex::new(asks))))
}

/// Five failures in five minutes are too many, until the plan says something
/// new.
async fn supervise(
    context: Arc<Context>,
    id: String,
    mut orders: watch::Receiver<Orders>,
    asks: Arc<Mutex<mpsc::Receiver<Ask>>>,
) {
    let mut failures = Failures::default();
    loop {
        // What comes from now on is new for whoever waits for that.
        orders.mark_unchanged();
        let (shared, name) = (Arc::clone(&context), id.clone());
        let (plan, questions) = (orders.clone(), Arc::clone(&asks));
        // Ends with whoever supervises it.
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut asks = questions.lock().await;
            match Instance::new(shared, name, plan) {
                Ok(mut instance) => instance.run(&mut asks).await,
                Err(error) => End::Unread(error),
            }
        });
        let why = match task.join_next().await {
            Some(Ok(End::Forgotten)) => {
                let _ = context.says.send(Says::Gone(id)).await;
                return;
            }
            Some(Ok(End::Halted)) | None => return,
            Some(Err(failed)) if failed.is_cancelled() => return,
            Some(Err(_)) => "the agent's task for it keeps failing".to_owned(),
            Some(Ok(End::Unread(error))) => match std::error::Error::source(&error) {
                Some(cause) => format!("its state cannot be read: {error}: {cause}"),
                None => format!("its state cannot be read: {error}"),
            },
        };
        context.metrics.count("actor_restarts_total", "instance");
        let pause = failures.pause();
        tracing::error!(instance = id, why, "its task failed");
        if failures.are_too_many() {
            let degraded = Says::Degraded(id.clone(), why);
            let _ = context.says.send(degraded).await;
            if plan_is_new(&context, &mut orders, &asks).await.is_none() {
                return;
            }
            failures.forgive();
        }
        sleep(pause).await;
    }
}

/// Waits until the plan says something new of an instance that nobody looks
/// after; nothing if the node ends first.
async fn plan_is_new(
    context: &Context,
    orders: &mut watch::Receiver<Orders>,
    asks: &Mutex<mpsc::Receiver<Ask>>,
) -> Option<()> {
    let mut asks = asks.lock().await;
    loop {
        tokio::select! {
            changed = orders.changed() => return changed.ok(),
            Some(ask) = asks.recv() => match ask {
                // What runs of it is left to whoever can read its state.
                Ask::Halt(_) => return None,
                Ask::Errand(errand) => {
                    let done = v1::ErrandDone {
                        errand_id: errand.errand_id,
                        refused: "instance_not_running".to_owned(),
                        diagnosis: None,
                    };
                    let _ = context.says.send(Says::Done(Box::new(done))).await;
                }
                Ask::Exec(open, _) => {
                    let refused = v1::ExecRefused {
                        session_id: open.session_id,
                        code: "instance_not_running".to_owned(),
                    };
                    let _ = context.says.send(Says::Refused(refused)).await;
                }
            },
        }
    }
}
