//! Numbers as people read them: durations, tokens, money, counts.

use fluffy_kernel::event::Spent;

/// How long something took.
pub(crate) fn duration(millis: u64) -> String {
    let (minutes, seconds) = (millis / 60_000, millis % 60_000 / 1_000);
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{seconds}.{} s", millis % 1_000 / 100),
        _ => format!("{minutes} min {seconds} s"),
    }
}

/// A number with its thousands apart.
pub(crate) fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number in at most five letters or so.
pub(crate) fn short(count: u64) -> String {
    let tenths = |unit: u64, name: char| {
        let tenths = count / (unit / 10);
        format!("{}.{}{name}", tenths / 10, tenths % 10)
    };
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => tenths(1_000, 'k'),
        1_000_000..1_000_000_000 => tenths(1_000_000, 'M'),
        _ => tenths(1_000_000_000, 'G'),
    }
}

/// An amount of money from millionths of a dollar.
pub(crate) fn money(micros: u64) -> String {
    // Rounded up: nobody is glad to hear of less than they pay.
    let cents = micros.div_ceil(10_000);
    format!("${}.{:02}", number(cents / 100), cents % 100)
}

/// `1 file`, `2 files`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    let word = if count == 1 { one } else { many };
    format!("{} {word}", number(count))
}

/// Everything that was sent and received, in tokens.
pub(crate) fn tokens(spent: &Spent) -> u64 {
    let tokens = &spent.tokens;
    tokens.input_tokens.saturating_add(tokens.output_tokens)
}

/// A model as people call it: a recording by its file's name alone.
pub(crate) fn model_name(model: &str) -> &str {
    match model.starts_with("replay/") {
        true => model.rsplit('/').next().unwrap_or(model),
        false => model,
    }
}

/// The beginning of an id, enough to name it on a command line.
pub(crate) fn short_id(id: &str) -> &str {
    // The kind, ten letters of time, four of chance.
    const LETTERS: usize = 18;
    id.get(..LETTERS).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        for (millis, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (59_999, "59.9 s"),
            (125_000, "2 min 5 s"),
        ] {
            assert_eq!(duration(millis), text);
        }
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(number(count), text);
        }
        for (count, text) in [
            (999, "999"),
            (1_000, "1.0k"),
            (12_345, "12.3k"),
            (999_999, "999.9k"),
            (2_500_000, "2.5M"),
            (u64::MAX, "18446744073.7G"),
        ] {
            assert_eq!(short(count), text);
        }
        for (micros, text) in [
            (0, "$0.00"),
            (1, "$0.01"),
            (41_200, "$0.05"),
            (12_340_000, "$12.34"),
            (u64::MAX, "$18,446,744,073,709.56"),
        ] {
            assert_eq!(money(micros), text);
        }
    }
}
