//! One stored row, borrowed column by column, and the bytes that get hashed.
//!
//! Readers and verification both come through here, so what a reader sees is
//! what was verified. Never trusts a column: `RowRef` may hold any tampered
//! value, and [`RowRef::to_event`] refuses what no writer could have stored.

use fluffy_base::canonical::write_text;
use fluffy_base::{Digest, Timestamp};

use crate::event::{Actor, Aggregate, Event, Payload, Scope};

/// The columns of one event in the order of the table, borrowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRef<'a> {
    pub(crate) seq: u64,
    pub(crate) domain: &'a str,
    pub(crate) aggregate_type: &'a str,
    pub(crate) aggregate_id: &'a str,
    pub(crate) aggregate_version: u64,
    pub(crate) event_type: &'a str,
    pub(crate) event_version: u32,
    pub(crate) occurred_at: Timestamp,
    pub(crate) actor_type: &'a str,
    pub(crate) actor_id: &'a str,
    pub(crate) actor_on_behalf_of: Option<&'a str>,
    pub(crate) org_id: Option<&'a str>,
    pub(crate) app_id: Option<&'a str>,
    pub(crate) env_id: Option<&'a str>,
    pub(crate) request_id: &'a str,
    pub(crate) idempotency_key: Option<&'a str>,
    pub(crate) correlation_id: Option<&'a str>,
    pub(crate) causation_seq: Option<u64>,
    pub(crate) decision_seq: Option<u64>,
    pub(crate) payload: &'a str,
    pub(crate) prev_hash: Digest,
    pub(crate) hash: Digest,
}

/// The names of the columns, in the order of [`RowRef`], for every engine.
pub(crate) const COLUMNS: [&str; 22] = [
    "seq",
    "domain",
    "aggregate_type",
    "aggregate_id",
    "aggregate_version",
    "event_type",
    "event_version",
    "occurred_at",
    "actor_type",
    "actor_id",
    "actor_on_behalf_of",
    "org_id",
    "app_id",
    "env_id",
    "request_id",
    "idempotency_key",
    "correlation_id",
    "causation_seq",
    "decision_seq",
    "payload",
    "prev_hash",
    "hash",
];

/// Which column of a row holds something no writer could have stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column `{column}` holds a value that no writer stores")]
pub(crate) struct MalformedColumn {
    /// The name of the column.
    pub(crate) column: &'static str,
}

impl<'a> RowRef<'a> {
    /// The row that stores this event.
    pub(crate) fn of(event: &'a Event) -> Self {
        Self {
            seq: event.seq,
            domain: event.domain.as_str(),
            aggregate_type: &event.aggregate.kind,
            aggregate_id: &event.aggregate.id,
            aggregate_version: event.aggregate_version,
            event_type: &event.event_type,
            event_version: event.event_version,
            occurred_at: event.occurred_at,
            actor_type: event.actor.kind.as_str(),
            actor_id: &event.actor.id,
            actor_on_behalf_of: event.actor.on_behalf_of.as_deref(),
            org_id: event.scope.org_id.as_deref(),
            app_id: event.scope.app_id.as_deref(),
            env_id: event.scope.env_id.as_deref(),
            request_id: &event.request_id,
            idempotency_key: event.idempotency_key.as_deref(),
            correlation_id: event.correlation_id.as_deref(),
            causation_seq: event.causation_seq,
            decision_seq: event.decision_seq,
            payload: event.payload.as_str(),
            prev_hash: event.prev_hash,
            hash: event.hash,
        }
    }

    /// The event that this row stores.
    pub(crate) fn to_event(self) -> Result<Event, MalformedColumn> {
        let malformed = |column| MalformedColumn { column };
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Event {
            seq: self.seq,
            domain: self.domain.parse().map_err(|_| malformed("domain"))?,
            aggregate: Aggregate::new(self.aggregate_type, self.aggregate_id),
            aggregate_version: self.aggregate_version,
            event_type: self.event_type.to_owned(),
            event_version: self.event_version,
            occurred_at: self.occurred_at,
            actor: Actor {
                kind: self
                    .actor_type
                    .parse()
                    .map_err(|_| malformed("actor_type"))?,
                id: self.actor_id.to_owned(),
                on_behalf_of: owned(self.actor_on_behalf_of),
            },
            scope: Scope {
                org_id: owned(self.org_id),
                app_id: owned(self.app_id),
                env_id: owned(self.env_id),
            },
            request_id: self.request_id.to_owned(),
            idempotency_key: owned(self.idempotency_key),
            correlation_id: owned(self.correlation_id),
            causation_seq: self.causation_seq,
            decision_seq: self.decision_seq,
            payload: Payload::from_canonical(self.payload),
            prev_hash: self.prev_hash,
            hash: self.hash,
        })
    }

    /// The hash this row should carry after `prev_hash`; `buffer` is reused.
    pub(crate) fn expected_hash(&self, prev_hash: &Digest, buffer: &mut String) -> Digest {
        buffer.clear();
        self.write_canonical(buffer, Hashes::Left);
        Digest::of_parts(&[prev_hash.as_bytes(), buffer.as_bytes()])
    }

    /// Appends the whole row as one line of canonical JSON, without newline.
    pub(crate) fn write_export(&self, out: &mut String) {
        self.write_canonical(out, Hashes::Written);
    }

    /// Writes the fields in the order RFC 8785 asks for, by hand: sorting a
    /// map per event would cost more than hashing it.
    fn write_canonical(&self, out: &mut String, hashes: Hashes) {
        out.push_str("{\"actor\":{\"id\":");
        write_text(out, self.actor_id);
        optional_text(out, ",\"on_behalf_of\":", self.actor_on_behalf_of);
        text(out, ",\"type\":", self.actor_type);
        text(out, "},\"aggregate_id\":", self.aggregate_id);
        text(out, ",\"aggregate_type\":", self.aggregate_type);
        number(out, ",\"aggregate_version\":", self.aggregate_version);
        optional_text(out, ",\"app_id\":", self.app_id);
        optional_number(out, ",\"causation_seq\":", self.causation_seq);
        optional_text(out, ",\"correlation_id\":", self.correlation_id);
        optional_number(out, ",\"decision_seq\":", self.decision_seq);
        text(out, ",\"domain\":", self.domain);
        optional_text(out, ",\"env_id\":", self.env_id);
        text(out, ",\"event_type\":", self.event_type);
        number(out, ",\"event_version\":", u64::from(self.event_version));
        if let Hashes::Written = hashes {
            digest(out, ",\"hash\":\"", &self.hash);
        }
        optional_text(out, ",\"idempotency_key\":", self.idempotency_key);
        out.push_str(",\"occurred_at\":\"");
        write_moment(out, self.occurred_at);
        out.push('"');
        optional_text(out, ",\"org_id\":", self.org_id);
        out.push_str(",\"payload\":");
        out.push_str(self.payload);
        if let Hashes::Written = hashes {
            digest(out, ",\"prev_hash\":\"", &self.prev_hash);
        }
        text(out, ",\"request_id\":", self.request_id);
        number(out, ",\"seq\":", self.seq);
        out.push('}');
    }
}

/// Whether `hash` and `prev_hash` are part of the text.
#[derive(Debug, Clone, Copy)]
enum Hashes {
    Left,
    Written,
}

fn text(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    write_text(out, value);
}

fn optional_text(out: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        text(out, name, value);
    }
}

fn number(out: &mut String, name: &str, value: u64) {
    out.push_str(name);
    write_number(out, value);
}

fn optional_number(out: &mut String, name: &str, value: Option<u64>) {
    if let Some(value) = value {
        number(out, name, value);
    }
}

fn digest(out: &mut String, name: &str, value: &Digest) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    out.push_str(name);
    for byte in value.as_bytes() {
        for nibble in [byte >> 4, byte & 15] {
            out.push(HEX.get(usize::from(nibble)).copied().unwrap_or('?'));
        }
    }
    out.push('"');
}

/// Decimal digits without the machinery of `write!`: five per event.
fn write_number(out: &mut String, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut used = 0;
    for slot in digits.iter_mut().rev() {
        *slot = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
        used += 1;
        if value == 0 {
            break;
        }
    }
    out.extend(
        digits
            .iter()
            .skip(20 - used)
            .map(|digit| char::from(*digit)),
    );
}

/// The text of `Timestamp`'s `Display`, by plain arithmetic: formatting a
/// calendar date through a general library would dominate verification.
fn write_moment(out: &mut String, moment: Timestamp) {
    let micros = moment.as_micros();
    let (days, in_day) = (
        micros.div_euclid(86_400_000_000),
        micros.rem_euclid(86_400_000_000),
    );
    // Days since 0000-03-01, so that the leap day ends the year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    for (value, width, after) in [
        (year, 4, '-'),
        (month, 2, '-'),
        (day, 2, 'T'),
        (in_day / 3_600_000_000, 2, ':'),
        (in_day / 60_000_000 % 60, 2, ':'),
        (in_day / 1_000_000 % 60, 2, '.'),
        (in_day % 1_000_000, 6, 'Z'),
    ] {
        padded(out, value, width);
        out.push(after);
    }
}

fn padded(out: &mut String, value: i64, width: u32) {
    for place in (0..width).rev() {
        let digit = value / 10i64.pow(place) % 10;
        out.push(char::from(b'0' + u8::try_from(digit).unwrap_or(0)));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use fluffy_base::canonical;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::event::{ActorKind, Domain};

    /// An event with every optional field present or absent as the bits say.
    pub(crate) fn any_event() -> impl Strategy<Value = Event> {
        let texts = prop::collection::vec("[^\u{0}-\u{1f}]{1,12}", 12);
        let numbers = prop::collection::vec(1u64..(1 << 53), 4);
        let moment = Timestamp::MIN.as_micros()..=Timestamp::MAX.as_micros();
        (texts, numbers, moment, any::<u16>(), any::<[u8; 64]>()).prop_map(
            |(texts, numbers, micros, bits, hashes)| {
                let text = |at: usize| texts[at].clone();
                let some = |bit: u16, at: usize| (bits >> bit & 1 == 1).then(|| text(at));
                let value = json!({"text": text(0), "list": [1, true, null], "n": numbers[0]});
                let (first, second) = hashes.split_at(32);
                Event {
                    seq: numbers[0],
                    domain: Domain::ALL[usize::from(bits % 3)],
                    aggregate: Aggregate::new(text(1), text(2)),
                    aggregate_version: numbers[1],
                    event_type: text(3),
                    event_version: 7,
                    occurred_at: Timestamp::from_micros(micros),
                    actor: Actor {
                        kind: ActorKind::ALL[usize::from(bits % 5)],
                        id: text(4),
                        on_behalf_of: some(0, 5),
                    },
                    scope: Scope {
                        org_id: some(1, 6),
                        app_id: some(2, 7),
                        env_id: some(3, 8),
                    },
                    request_id: text(9),
                    idempotency_key: some(4, 10),
                    correlation_id: some(5, 11),
                    causation_seq: (bits >> 6 & 1 == 1).then_some(numbers[2]),
                    decision_seq: (bits >> 7 & 1 == 1).then_some(numbers[3]),
                    payload: Payload::from_canonical(canonical::to_string(&value).unwrap()),
                    prev_hash: Digest(first.try_into().unwrap()),
                    hash: Digest(second.try_into().unwrap()),
                }
            },
        )
    }

    /// The same fields through serde, absent ones as absent keys.
    fn by_serde(event: &Event) -> Value {
        let mut value = json!({
            "actor": {"type": event.actor.kind, "id": event.actor.id},
            "aggregate_id": event.aggregate.id,
            "aggregate_type": event.aggregate.kind,
            "aggregate_version": event.aggregate_version,
            "domain": event.domain,
            "event_type": event.event_type,
            "event_version": event.event_version,
            "occurred_at": event.occurred_at,
            "payload": event.payload.value().unwrap(),
            "request_id": event.request_id,
            "seq": event.seq,
        });
        let optional = [
            ("app_id", json!(event.scope.app_id)),
            ("env_id", json!(event.scope.env_id)),
            ("org_id", json!(event.scope.org_id)),
            ("idempotency_key", json!(event.idempotency_key)),
            ("correlation_id", json!(event.correlation_id)),
            ("causation_seq", json!(event.causation_seq)),
            ("decision_seq", json!(event.decision_seq)),
        ];
        for (name, field) in optional.into_iter().filter(|(_, field)| !field.is_null()) {
            value[name] = field;
        }
        if let Some(principal) = &event.actor.on_behalf_of {
            value["actor"]["on_behalf_of"] = json!(principal);
        }
        value
    }

    proptest! {
        #[test]
        fn the_hashed_bytes_are_the_canonical_json(event in any_event()) {
            let mut value = by_serde(&event);
            let text = canonical::to_string(&value).unwrap();
            let mut buffer = String::new();
            let hash = RowRef::of(&event).expected_hash(&event.prev_hash, &mut buffer);
            prop_assert_eq!(&buffer, &text);
            prop_assert_eq!(hash, Digest::of_parts(&[&event.prev_hash.0, text.as_bytes()]));
            value["hash"] = json!(event.hash);
            value["prev_hash"] = json!(event.prev_hash);
            let mut line = String::new();
            RowRef::of(&event).write_export(&mut line);
            prop_assert_eq!(line, canonical::to_string(&value).unwrap());
        }

        #[test]
        fn a_row_gives_its_event_back(event in any_event()) {
            prop_assert_eq!(RowRef::of(&event).to_event().unwrap(), event);
        }

        #[test]
        fn a_moment_is_written_as_it_displays(
            micros in Timestamp::MIN.as_micros()..=Timestamp::MAX.as_micros()
        ) {
            let moment = Timestamp::from_micros(micros);
            let mut text = String::new();
            write_moment(&mut text, moment);
            prop_assert_eq!(text, moment.to_string());
        }
    }

    #[test]
    fn the_ends_of_the_calendar_and_of_numbers_are_written_alike() {
        for moment in [Timestamp::MIN, Timestamp::MAX, Timestamp::from_micros(0)] {
            let mut text = String::new();
            write_moment(&mut text, moment);
            assert_eq!(text, moment.to_string());
        }
        for value in [0, 9, 10, u64::MAX] {
            let mut text = String::new();
            write_number(&mut text, value);
            assert_eq!(text, value.to_string());
        }
    }
}
