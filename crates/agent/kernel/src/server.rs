//! The kernel as a server: sessions for clients, over IPC.
//!
//! Holds the sessions that are being worked on; everything else about them is
//! in the ledger. What a session stands on comes from whoever made the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::id::SessionId;
use fluffy_contract::BoxFuture;
use fluffy_ipc::server::EventSender;
use fluffy_ipc::{ApiRange, ErrorCode, Failure, Server};
use tokio::sync::watch;

use crate::agent::{Agent, DriveError};
use crate::api::{
    self, Alive, AnswerApproval, Attach, Begun, Heard, Order, Reply, Resume, Say, Start, Which,
};
use crate::event::{AgentEvent, Evidence, SessionEnded, SessionResult};
use crate::hub::Hub;
use crate::person::Person;
use crate::stop::Stop;

/// Makes sessions ready to work.
pub trait Make: Send + Sync + 'static {
    /// A new session for a task.
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Ready, Failure>>;

    /// A recorded session, to go on.
    fn resume(&self, resume: Resume) -> BoxFuture<'_, Result<Ready, Failure>>;
}

/// A session that can work, and the ways to it.
pub struct Ready {
    /// The session.
    pub agent: Agent,
    /// Who listens.
    pub hub: Arc<Hub>,
    /// Who answers.
    pub person: Arc<Person>,
    /// How it is stopped.
    pub stop: Arc<Stop>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").finish_non_exhaustive()
    }
}

/// A session that is known to this kernel.
#[derive(Debug, Clone)]
struct Known {
    hub: Arc<Hub>,
    person: Arc<Person>,
    stop: Arc<Stop>,
    busy: Arc<std::sync::atomic::AtomicBool>,
}

#[derive(Clone)]
struct Kernel {
    make: Arc<dyn Make>,
    sessions: Arc<Mutex<BTreeMap<SessionId, Known>>>,
    needed: Needed,
}

/// How many sessions work and how many clients listen.
#[derive(Debug, Clone, Default)]
pub struct Needed(Arc<watch::Sender<usize>>);

/// One reason not to end, as long as it lives.
#[derive(Debug)]
struct Reason(Needed);

impl Needed {
    /// Waits until nobody has needed the kernel for as long as this.
    pub async fn no_more(&self, linger: Duration) {
        let mut count = self.0.subscribe();
        loop {
            // The sender is our own, so neither wait can fail.
            let _ = count.wait_for(|count| *count == 0).await;
            tokio::select! {
                () = tokio::time::sleep(linger) => return,
                _ = count.wait_for(|count| *count > 0) => {}
            }
        }
    }

    fn reason(&self) -> Reason {
        self.0.send_modify(|count| *count += 1);
        Reason(self.clone())
    }
}

impl Drop for Reason {
    fn drop(&mut self) {
        self.0
            .0
            .send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// The server of a kernel, and whether anybody needs it.
pub fn server(make: Arc<dyn Make>, version: &str) -> (Server, Needed) {
    let needed = Needed::default();
    let kernel = Kernel {
        make,
        sessions: Arc::default(),
        needed: needed.clone(),
    };
    let own = version.to_owned();
    let with = |kernel: &Kernel| kernel.clone();
    let server = Server::new("kernel", ApiRange::current_and_previous(api::VERSION));
    let start = with(&kernel);
    let resume = with(&kernel);
    let attach = with(&kernel);
    let say = with(&kernel);
    let answer = with(&kernel);
    let stop = with(&kernel);
    let order = with(&kernel);
    let alive = with(&kernel);
    let server = server
        .version(version)
        .method(api::START, move |context, wanted: Start| {
            let (kernel, events) = (start.clone(), context.events());
            async move {
                let _reason = kernel.needed.reason();
                let ready = kernel.make.start(wanted).await?;
                Ok(kernel.work(ready, events))
            }
        })
        .method(api::RESUME, move |context, wanted: Resume| {
            let (kernel, events) = (resume.clone(), context.events());
            async move {
                let _reason = kernel.needed.reason();
                let session = wanted.session;
                if let Some(known) = kernel.find(session)
                    && known.busy.load(std::sync::atomic::Ordering::Relaxed)
                {
                    kernel.tell(session, known.hub, 0, events);
                    return Ok(Begun { session });
                }
                let ready = kernel.make.resume(wanted).await?;
                Ok(kernel.work(ready, events))
            }
        })
        .method(api::ATTACH, move |context, wanted: Attach| {
            let (kernel, events) = (attach.clone(), context.events());
            async move {
                let known = kernel.known(wanted.session)?;
                kernel.tell(wanted.session, known.hub, wanted.after, events);
                Ok(())
            }
        })
        .method(api::SAY, move |_, wanted: Say| {
            let kernel = say.clone();
            async move {
                kernel.known(wanted.session)?;
                Err::<(), _>(Failure::new(
                    ErrorCode::Conflict,
                    "the session works on its task; stop it, or wait until it rests",
                ))
            }
        })
        .method(api::ANSWER, move |_, wanted: AnswerApproval| {
            let kernel = answer.clone();
            async move {
                let known = kernel.known(wanted.session)?;
                match known.person.answer(wanted.approval, wanted.answer) {
                    true => Ok(()),
                    false => Err(Failure::new(ErrorCode::NotFound, "nobody asks that")),
                }
            }
        })
        .method(api::STOP, move |_, wanted: Which| {
            let kernel = stop.clone();
            async move {
                kernel.known(wanted.session)?.stop.ask();
                Ok(())
            }
        })
        .method(api::COMMAND, move |_, wanted: Order| {
            let kernel = order.clone();
            async move {
                kernel.known(wanted.session)?;
                Ok(Reply::Refused {
                    text: format!("{:?} is not possible while it works", wanted.order),
                })
            }
        })
        .method(api::PING, move |_, (): ()| {
            let (kernel, version) = (alive.clone(), own.clone());
            async move {
                let busy = kernel.busy();
                Ok(Alive { version, busy })
            }
        });
    (server, needed)
}

impl Kernel {
    /// Lets a session work, and tells this client of it.
    fn work(&self, ready: Ready, events: EventSender) -> Begun {
        let Ready {
            mut agent,
            hub,
            person,
            stop,
        } = ready;
        let session = agent.session.id;
        let busy = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let known = Known {
            hub: Arc::clone(&hub),
            person,
            stop,
            busy: Arc::clone(&busy),
        };
        self.sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(session, known);
        self.tell(session, Arc::clone(&hub), 0, events);
        let reason = self.needed.reason();
        tokio::spawn(async move {
            match agent.work().await {
                // Lost: the client hears of it by losing this kernel, and goes
                // on with the next.
                Ok(_) | Err(DriveError::Lost) => {}
                Err(error) => {
                    // The ledger may be what failed; the client still hears why.
                    hub.publish(AgentEvent::SessionEnded(SessionEnded {
                        result: SessionResult::Failed,
                        exit: 7,
                        why: crate::agent::explain(&error),
                        evidence: Evidence::default(),
                    }));
                }
            }
            busy.store(false, std::sync::atomic::Ordering::Relaxed);
            drop(reason);
        });
        Begun { session }
    }

    /// Tells a client of a session until it is gone.
    fn tell(&self, session: SessionId, hub: Arc<Hub>, after: u64, events: EventSender) {
        let reason = self.needed.reason();
        tokio::spawn(async move {
            tokio::select! {
                () = forward(session, hub, after, &events) => {}
                () = events.gone() => {}
            }
            drop(reason);
        });
    }

    fn find(&self, session: SessionId) -> Option<Known> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&session).cloned()
    }

    fn known(&self, session: SessionId) -> Result<Known, Failure> {
        self.find(session).ok_or_else(|| {
            let message = format!("`{session}` is not being worked on; resume it first");
            Failure::new(ErrorCode::NotFound, message)
        })
    }

    fn busy(&self) -> usize {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let is_busy = |known: &&Known| known.busy.load(std::sync::atomic::Ordering::Relaxed);
        sessions.values().filter(is_busy).count()
    }
}

/// Tells one client of a session until it takes no more.
async fn forward(session: SessionId, hub: Arc<Hub>, after: u64, events: &EventSender) {
    let mut listening = hub.listen(after);
    loop {
        let (number, event) = listening.next().await;
        let heard = Heard {
            session,
            number,
            event,
        };
        if events.emit(api::EVENT, &heard).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kernel_lingers_after_the_last_who_needs_it() {
        let needed = Needed::default();
        let linger = Duration::from_secs(5);
        let mut ends = std::pin::pin!(needed.no_more(linger));
        let first = needed.reason();
        let second = needed.reason();
        let wait = tokio::time::timeout(linger * 10, &mut ends);
        assert!(wait.await.is_err());
        drop(first);
        assert!(tokio::time::timeout(linger * 10, &mut ends).await.is_err());
        drop(second);
        assert!(tokio::time::timeout(linger / 2, &mut ends).await.is_err());
        let again = needed.reason();
        assert!(tokio::time::timeout(linger * 10, &mut ends).await.is_err());
        drop(again);
        let began = tokio::time::Instant::now();
        ends.await;
        assert!(began.elapsed() >= linger);
    }
}
