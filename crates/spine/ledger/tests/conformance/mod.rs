//! The contract of a ledger as one list of cases, the same for every engine.
//!
//! An engine joins by implementing [`Place`] and calling `conformance!`. No
//! case may know which engine it runs on.

pub(crate) mod appending;
pub(crate) mod child;
pub(crate) mod histories;
pub(crate) mod projecting;
pub(crate) mod reading;
pub(crate) mod subscribing;
pub(crate) mod tally;

use std::time::Duration;

use fluffy_ledger::{Actor, Aggregate, Batch, Domain, Draft, Event, Ledger, VerifyOptions};
use serde_json::json;

/// Long enough for a loaded machine, short enough to notice.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Somewhere a ledger can be opened, more than once and by several processes.
pub(crate) trait Place: Sync + Sized {
    /// Nothing is there yet.
    fn fresh() -> Self;

    /// What another process needs to open the same ledger.
    fn address(&self) -> String;

    /// Opens the ledger at an address.
    fn open_at(address: &str) -> Ledger;

    /// Opens the ledger, once more if it is open already.
    fn open(&self) -> Ledger {
        Self::open_at(&self.address())
    }
}

/// Defines one test per case for a [`Place`].
macro_rules! conformance {
    ($place:ty) => {
        conformance! { $place:
            appending::events_are_numbered_and_chained,
            appending::a_conflict_names_the_current_version,
            appending::a_batch_is_all_or_nothing,
            appending::a_batch_follows_the_head_it_names,
            appending::who_expects_the_head_decides_on_all_of_it,
            appending::a_draft_foresees_its_event,
            appending::concurrent_writers_leave_no_gap,
            appending::contended_versions_never_repeat,
            appending::several_handles_share_one_chain,
            appending::many_may_open_and_close_at_once,
            appending::tickets_resolve_in_order,
            appending::a_draft_may_refer_to_a_pending_ticket,
            appending::a_ticket_of_another_ledger_is_refused,
            appending::closing_writes_what_was_recorded,
            appending::the_buffer_empties_by_itself,
            appending::a_closed_ledger_still_reads,
            reading::pages_join_without_overlap,
            reading::aggregates_are_told_apart,
            reading::the_newest_are_found_from_the_end,
            reading::every_field_reads_back,
            reading::the_largest_payload_fits_and_no_larger,
            reading::large_events_come_in_bounded_pages,
            reading::pages_of_proofs_are_of_one_tree_while_it_grows,
            subscribing::a_subscription_starts_anywhere,
            subscribing::a_subscription_waits_for_more,
            subscribing::a_subscription_goes_on_after_a_restart,
            subscribing::a_filter_leaves_watermarks,
            subscribing::every_subscriber_sees_the_same_order,
            subscribing::commits_of_another_handle_arrive,
            subscribing::a_position_past_the_end_is_refused,
            subscribing::tasks_can_subscribe_too,
            projecting::events_are_applied_once_through_restarts,
            projecting::two_projectors_apply_once_between_them,
            projecting::projectors_may_start_at_the_same_moment,
            projecting::a_killed_projector_applied_once,
            projecting::a_rebuild_under_load_is_equal,
            projecting::waiting_ends_with_the_event_or_the_time,
            projecting::an_unknown_event_halts_and_is_not_skipped,
            projecting::a_panicking_projection_halts,
            projecting::old_payloads_are_lifted,
            projecting::a_new_schema_starts_again,
            projecting::unusable_sets_are_refused,
            projecting::queries_cannot_write,
            histories::random_histories_rebuild_to_equal_views,
        }

        /// Does nothing unless a case starts this binary as its child.
        #[test]
        fn child_process() {
            conformance::child::run::<$place>();
        }
    };
    ($place:ty: $($module:ident::$case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                conformance::$module::$case(&<$place as conformance::Place>::fresh());
            }
        )*
    };
}
pub(crate) use conformance;

/// An operational event of the session `id`.
pub(crate) fn draft(id: &str, number: u64) -> Draft {
    Draft::new(
        Domain::Agent,
        Aggregate::new("session", id),
        "tool.execute",
        Actor::system("test"),
    )
    .payload(json!({"number": number}))
}

/// Appends `count` events of one session, one batch each ten.
pub(crate) fn append_many(ledger: &Ledger, id: &str, count: u64) {
    let mut number = 0;
    while number < count {
        let end = (number + 10).min(count);
        let drafts = (number..end).map(|number| draft(id, number)).collect();
        ledger.append_blocking(Batch::new(drafts)).unwrap();
        number = end;
    }
}

/// Everything in the ledger, after checking that the chain holds together and
/// that verification says so too. Nobody may append meanwhile.
pub(crate) fn read_chain(ledger: &Ledger) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let page = ledger.read(events.len() as u64 + 1, 100).unwrap();
        if page.is_empty() {
            break;
        }
        events.extend(page);
    }
    let mut before = ledger.genesis().hash();
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event.seq, index as u64 + 1);
        assert_eq!(event.prev_hash, before, "event {}", event.seq);
        before = event.hash;
    }
    let head = ledger.head().unwrap();
    assert_eq!((head.seq, head.hash), (events.len() as u64, before));
    let verified = ledger.verify(&VerifyOptions::default()).unwrap();
    assert_eq!(verified.verdict, Ok(()));
    assert_eq!((verified.events, verified.root), (head.seq, head.root));
    events
}
