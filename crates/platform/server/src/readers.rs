//! Which events every replica can read, so that none meets one it does not know.
//!
//! A replica says beside the ledger, again and again, which version of readers
//! it is. Whoever leads has the lowest appended where that is more than before,
//! and the sequencer appends nothing that takes more than the ledger says. Who
//! was silent for longer than [`LIFE`] counts as gone; if it comes back all the
//! same it stops at the first event that it does not know, and skips none.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fluffy_control::event::{READER_VERSION, readable_since};
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::{Fence, Notice};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::aside::{Aside, AsideError, Kind};
use crate::platform::Platform;
use crate::sequencer::Since;

/// The versions of replicas that live, by name.
const READERS: Kind = Kind::new("reader");
/// How long what a replica says is believed.
const LIFE: Duration = Duration::from_secs(15);
/// How often it says it.
const AGAIN: Duration = Duration::from_secs(5);
/// More replicas than anybody has.
const MOST: u32 = 1_000;
/// How often in a row a leader looks, five seconds apart, before it goes by
/// what it sees: after an outage of the store nobody had a chance to speak.
const LOOKS: u32 = 4;

/// What this build reads and writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Build {
    /// Which version of readers it is.
    pub(crate) reads: u64,
    /// Since which version readers know an event.
    pub(crate) since: Since,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            reads: READER_VERSION,
            since: readable_since,
        }
    }
}

/// What a replica says of itself.
#[derive(Debug)]
pub(crate) struct Sign {
    aside: Aside,
    replica: String,
    reads: u64,
}

impl Sign {
    /// The sign of a replica that is this version of readers.
    pub(crate) fn new(aside: Aside, replica: String, reads: u64) -> Self {
        Self {
            aside,
            replica,
            reads,
        }
    }

    /// Says it, for a while.
    ///
    /// # Errors
    /// The store beside the ledger is not available.
    pub(crate) async fn say(&self) -> Result<(), AsideError> {
        let reads = self.reads.to_string().into_bytes();
        let said = self.aside.put(READERS, &self.replica, reads, Some(LIFE));
        said.await
    }

    /// Says it again and again, until told to stop.
    pub(crate) async fn keep(&self, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = sleep(AGAIN) => {}
            }
            if let Err(error) = self.say().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the other servers do not hear which events this one can read"
                );
            }
        }
    }

    /// Takes it back, because nothing is read here any more.
    pub(crate) async fn take_back(&self) {
        // If that is lost, it ends by itself.
        let _ = self.aside.delete(READERS, &self.replica).await;
    }
}

/// How often in a row it was seen what all replicas read.
#[derive(Debug, Default)]
pub(crate) struct Looks(AtomicU32);

impl Looks {
    /// Looks what every replica that lives can read, and has it appended where
    /// that is more than before and nobody can have been overlooked.
    pub(crate) async fn look(&self, platform: &Platform, fence: Option<&Fence>) {
        let least = match least(platform).await {
            Ok(least) => least,
            Err(error) => {
                self.0.store(0, Ordering::Relaxed);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "which events all servers can read can't be found out"
                );
                return;
            }
        };
        let looks = self.0.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if platform.is_alone() || looks >= LOOKS {
            raise(platform, least, fence).await;
        }
    }
}

/// What every replica that lives can read, this one included.
async fn least(platform: &Platform) -> Result<u64, AsideError> {
    let all = platform.aside().list(READERS, "", MOST).await?;
    let reads = all.iter().map(|entry| {
        // Who says what nobody understands may read less than anybody.
        let text = String::from_utf8_lossy(&entry.value);
        text.parse::<u64>().unwrap_or(0)
    });
    Ok(reads.fold(platform.build().reads, u64::min))
}

/// Says what this replica reads if there can be no other, which nobody else
/// has to be waited for; what fails is for the loop.
pub(crate) async fn set_if_alone(platform: &Platform) {
    if platform.is_alone() {
        raise(platform, platform.build().reads, None).await;
    }
}

/// Has it appended what all replicas read, where that is more than before.
async fn raise(platform: &Platform, reads: u64, fence: Option<&Fence>) {
    let states = platform.sequencer();
    if states.read(|state| state.runtime.cluster.reader_version) >= reads {
        return;
    }
    let notice = Notice::Runtime(RuntimeNotice::Readers(reads));
    if let Err(error) = platform.notice("readers", fence.cloned(), notice).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "which events all servers can read was not recorded"
        );
    }
}

#[cfg(test)]
mod tests {
    use fluffy_ledger::LedgerOptions;
    use fluffy_test_kit::FreshDatabase;
    use tokio::time::timeout;

    use super::*;
    use crate::loops;
    use crate::loops::lease::Timing;
    use crate::machine::Reply;
    use crate::platform::{Founder, OpenPlatformError, Storage};
    use crate::sequencer::{Answer, SubmitError};
    use crate::server::{Options, Server};

    /// More than any machine needs.
    const LONG: Duration = Duration::from_secs(120);

    /// Of a later build: one type is known to readers of the second version.
    fn since(event_type: &str, _: u32) -> u64 {
        1 + u64::from(event_type == "cluster.ipv4_pool_set")
    }

    async fn open(storage: &Storage, reads: u64) -> Result<Platform, OpenPlatformError> {
        Platform::open_as(storage, LedgerOptions::default(), Build { reads, since }).await
    }

    /// Has the event appended that only later builds know.
    async fn newer(platform: &Platform) -> Result<Answer<Reply>, SubmitError> {
        let ranges = vec!["198.51.100.0/28".to_owned()];
        let notice = Notice::Runtime(RuntimeNotice::Ipv4Pool(ranges));
        platform.notice("test", None, notice).await
    }

    fn known(platform: &Platform) -> u64 {
        let states = platform.sequencer();
        states.read(|state| state.runtime.cluster.reader_version)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_newer_event_waits_until_the_last_older_server_is_gone() {
        let database = FreshDatabase::create().unwrap();
        let storage = Storage::database(database.url().parse().unwrap());
        let old = open(&storage, 1).await.unwrap();
        old.begin(Founder::Local).await.unwrap();
        let new = open(&storage, 2).await.unwrap();
        let looks = Looks::default();
        for _ in 0..LOOKS {
            looks.look(&new, None).await;
        }
        assert_eq!(known(&new), 1, "the older one lives");
        let before = new.ledger().head().unwrap();
        let refused = newer(&new).await.unwrap_err();
        let SubmitError::Unreadable {
            event_type,
            needed,
            readers,
        } = &refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(event_type, "cluster.ipv4_pool_set");
        assert_eq!((*needed, *readers), (2, 1));
        assert_eq!(new.ledger().head().unwrap(), before, "nothing was appended");

        old.close().await;
        // Whoever leads anew may have been cut off from everybody till now.
        let looks = Looks::default();
        for _ in 1..LOOKS {
            looks.look(&new, None).await;
        }
        assert_eq!(known(&new), 1, "somebody may not have spoken yet");
        looks.look(&new, None).await;
        assert_eq!(known(&new), 2);
        newer(&new).await.unwrap();
        let public = |state: &fluffy_control::State| state.runtime.ipam.public.len();
        assert_eq!(new.sequencer().read(public), 1);

        // One that reads less comes too late, and holds up nobody.
        let late = open(&storage, 1).await.unwrap_err();
        let is_too_old = matches!(
            late,
            OpenPlatformError::TooOld {
                reads: 1,
                wanted: 2
            }
        );
        assert!(is_too_old, "{late:?}");
        let said = new.aside().list(READERS, "", MOST).await.unwrap();
        assert_eq!(said.len(), 1, "{said:?}");
        new.close().await;
        let said = new.aside().list(READERS, "", MOST).await.unwrap();
        assert!(said.is_empty(), "{said:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_on_files_knows_at_once_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            storage: Storage::Directory(folder.path().to_owned()),
            ledger: LedgerOptions::default(),
            founder: Founder::Local,
            timing: Timing::default(),
        };
        let server = Server::start(options).await.unwrap();
        assert_eq!(known(server.platform()), READER_VERSION);
        server.stop().await;
    }

    /// Whoever leads the loop of upkeep looks.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_all_can_read_is_recorded_by_a_loop() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::Directory(folder.path().to_owned());
        let platform = open(&storage, 2).await.unwrap();
        platform.begin(Founder::Local).await.unwrap();
        assert_eq!(known(&platform), 0);
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(loops::run(platform.clone(), Timing::default(), stopped));
        let mut positions = platform.sequencer().positions();
        let recorded = positions.wait_for(|_| known(&platform) == 2);
        drop(timeout(LONG, recorded).await.unwrap().unwrap());
        stop.send_replace(true);
        running.await.unwrap();
        platform.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_says_what_it_reads_again_and_again() {
        let folder = tempfile::tempdir().unwrap();
        let aside = Aside::open(folder.path()).unwrap();
        let sign = Sign::new(aside.clone(), "one".to_owned(), 7);
        let (stop, stopped) = watch::channel(false);
        let listen = async {
            for _ in 0..2 {
                // Two rounds pass in no time; one of them said it.
                sleep(AGAIN * 2).await;
                let said = aside.list(READERS, "", MOST).await.unwrap();
                assert_eq!(said.len(), 1);
                assert_eq!(said[0].value, b"7");
                assert!(aside.delete(READERS, "one").await.unwrap());
            }
            stop.send_replace(true);
        };
        tokio::join!(sign.keep(stopped), listen);
        sign.say().await.unwrap();
        sign.take_back().await;
        assert!(aside.list(READERS, "", MOST).await.unwrap().is_empty());
    }
}
