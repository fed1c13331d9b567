//! The kernel as a server: sessions for clients, over IPC.
//!
//! Knows how each session is reached; a session itself is its `host`'s, and
//! everything else about it is in the ledger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fluffy_base::id::SessionId;
use fluffy_ipc::server::EventSender;
use fluffy_ipc::{ApiRange, ErrorCode, Failure, Server};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::api::{
    self, Alive, AnswerApproval, Attach, Begun, Heard, Order, Presence, ProviderEnvironment,
    Resume, Say, Start, Which,
};
use crate::host::{Host, Known, Make, Ways};
use crate::hub::Hub;

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
pub(crate) struct Reason(Needed);

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

    pub(crate) fn reason(&self) -> Reason {
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
                let ways = Ways::new(wanted.person);
                let (person, providers) = (wanted.person, wanted.providers.clone());
                let agent = kernel.make.start(wanted, ways.clone()).await?;
                let session = agent.id();
                let resume = Resume {
                    session,
                    person,
                    providers,
                };
                kernel.tell(session, Arc::clone(&ways.hub), 0, events);
                kernel.begin(resume, ways, agent);
                Ok(Begun { session })
            }
        })
        .method(api::RESUME, move |context, wanted: Resume| {
            let (kernel, events) = (resume.clone(), context.events());
            async move {
                let _reason = kernel.needed.reason();
                let session = wanted.session;
                let known = kernel.reach(&wanted);
                let resumed = known.resume(wanted).await;
                kernel.forget_missing(session, &resumed);
                kernel.tell(session, known.ways.hub, resumed?, events);
                Ok(Begun { session })
            }
        })
        .method(api::ATTACH, move |context, wanted: Attach| {
            let (kernel, events) = (attach.clone(), context.events());
            async move {
                let known = kernel.known(wanted.session)?;
                kernel.tell(wanted.session, known.ways.hub, wanted.after, events);
                Ok(())
            }
        })
        .method(api::SAY, move |_, wanted: Say| {
            let kernel = say.clone();
            async move { kernel.known(wanted.session)?.say(wanted.text).await }
        })
        .method(api::ANSWER, move |_, wanted: AnswerApproval| {
            let kernel = answer.clone();
            async move {
                let known = kernel.known(wanted.session)?;
                match known.ways.person.answer(wanted.approval, wanted.answer) {
                    true => Ok(()),
                    false => Err(Failure::new(ErrorCode::NotFound, "nobody asks that")),
                }
            }
        })
        .method(api::STOP, move |_, wanted: Which| {
            let kernel = stop.clone();
            async move {
                kernel.known(wanted.session)?.ways.stop.ask();
                Ok(())
            }
        })
        .method(api::COMMAND, move |_, wanted: Order| {
            let kernel = order.clone();
            async move {
                let _reason = kernel.needed.reason();
                let Order { session, order } = wanted;
                // An order needs nobody who watches, and no model.
                let resume = Resume {
                    session,
                    person: Presence::Absent,
                    providers: ProviderEnvironment::default(),
                };
                let done = kernel.reach(&resume).order(order).await;
                kernel.forget_missing(session, &done);
                done
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
    /// Makes a new session known, and lets it work.
    fn begin(&self, resume: Resume, ways: Ways, agent: Agent) {
        let session = resume.session;
        let (host, known) = self.host(resume, ways);
        self.sessions().insert(session, known);
        tokio::spawn(host.live(Some(agent)));
    }

    fn host(&self, resume: Resume, ways: Ways) -> (Host, Known) {
        let make = Arc::clone(&self.make);
        Host::new(make, self.needed.clone(), ways, resume)
    }

    /// A session, known already or from the ledger.
    fn reach(&self, resume: &Resume) -> Known {
        let mut sessions = self.sessions();
        if let Some(known) = sessions.get(&resume.session) {
            return known.clone();
        }
        let ways = Ways::new(resume.person);
        let (host, known) = self.host(resume.clone(), ways);
        sessions.insert(resume.session, known.clone());
        tokio::spawn(host.live(None));
        known
    }

    /// What turned out not to exist is forgotten, and its task ends.
    fn forget_missing<T>(&self, session: SessionId, done: &Result<T, Failure>) {
        if done
            .as_ref()
            .is_err_and(|failure| failure.code == ErrorCode::NotFound)
        {
            self.sessions().remove(&session);
        }
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

    fn sessions(&self) -> std::sync::MutexGuard<'_, BTreeMap<SessionId, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, session: SessionId) -> Option<Known> {
        self.sessions().get(&session).cloned()
    }

    fn known(&self, session: SessionId) -> Result<Known, Failure> {
        self.find(session).ok_or_else(|| {
            let message = format!("`{session}` is not being worked on; resume it first");
            Failure::new(ErrorCode::NotFound, message)
        })
    }

    fn busy(&self) -> usize {
        let sessions = self.sessions();
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
