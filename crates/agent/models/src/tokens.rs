//! How many tokens a text has, by one local tokenizer.
//!
//! OpenAI publishes its vocabulary, so its counts are exact; for everybody
//! else they are an estimate and say so. The vocabulary is unpacked at first
//! use and kept. Never counts a whole turn: what a provider puts around the
//! messages is only known from its own usage.

use tiktoken::CoreBpe;

/// A count, and how far it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenCount {
    /// The provider counts the same.
    Exact(usize),
    /// The provider counts otherwise, but not by much.
    Estimate(usize),
}

impl TokenCount {
    /// The number, whatever it is worth.
    #[must_use]
    pub const fn value(self) -> usize {
        match self {
            Self::Exact(count) | Self::Estimate(count) => count,
        }
    }
}

/// How many tokens a text has for a model, given as `provider/model`.
#[must_use]
pub fn count(model: &str, text: &str) -> TokenCount {
    let counted = encoding().map(|encoding| encoding.count(text));
    match counted {
        Some(count) if is_published(model) => TokenCount::Exact(count),
        Some(count) => TokenCount::Estimate(count),
        // Three bytes for a token is on the safe side in every language.
        None => TokenCount::Estimate(text.len().div_ceil(3)),
    }
}

/// The beginning of a text, as much of it as has at most `limit` tokens.
#[must_use]
pub fn head(text: &str, limit: usize) -> &str {
    cut(text, limit, |size| {
        text.get(..text.floor_char_boundary(size))
            .unwrap_or_default()
    })
}

/// The end of a text, as much of it as has at most `limit` tokens.
#[must_use]
pub fn tail(text: &str, limit: usize) -> &str {
    let from = |size: usize| text.ceil_char_boundary(text.len().saturating_sub(size));
    cut(text, limit, |size| {
        text.get(from(size)..).unwrap_or_default()
    })
}

/// The longest part that fits; of long texts up to a 256th less, because the
/// last bytes cost as much to find as all others.
fn cut<'a>(text: &'a str, limit: usize, part: impl Fn(usize) -> &'a str) -> &'a str {
    let fits = |text: &str| match encoding() {
        Some(encoding) => encoding.count(text) <= limit,
        None => text.len().div_ceil(3) <= limit,
    };
    // Looks at parts of growing size, so that the cost depends on what is
    // kept and not on what is left out.
    let (mut low, mut high) = (0, limit.saturating_mul(3).max(1));
    while high < text.len() && fits(part(high)) {
        (low, high) = (high, high.saturating_mul(2));
    }
    if high >= text.len() {
        if fits(text) {
            return text;
        }
        high = text.len();
    }
    while high - low > 1 + high / 256 {
        let middle = low.midpoint(high);
        match fits(part(middle)) {
            true => low = middle,
            false => high = middle,
        }
    }
    match low {
        0 => "",
        low => part(low),
    }
}

fn encoding() -> Option<&'static CoreBpe> {
    tiktoken::get_encoding("o200k_base")
}

/// Whether a model uses the vocabulary we have: OpenAI's since GPT-4o.
fn is_published(model: &str) -> bool {
    let Some(name) = model.strip_prefix("openai/") else {
        return false;
    };
    let is_old = ["gpt-3", "gpt-4-", "text-", "davinci"]
        .iter()
        .any(|old| name.starts_with(old));
    let is_ours = ["gpt-", "o1", "o3", "o4", "codex", "chatgpt"]
        .iter()
        .any(|own| name.starts_with(own));
    is_ours && !is_old && name != "gpt-4"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Counted with `tiktoken-rs`, an implementation by others.
    const KNOWN: &[(&str, usize)] = &[
        ("", 0),
        ("hello world", 2),
        ("fn main() { println!(\"hi\"); }", 9),
        ("Grüße aus Köln, 漢字 und 🦀!", 14),
        ("    indented\n\n\n\tand more  ", 7),
        ("1234567890", 4),
        ("don't can't won't I'LL", 5),
    ];

    #[test]
    fn counts_are_those_of_the_vendor() {
        for (text, wanted) in KNOWN {
            assert_eq!(
                count("openai/gpt-5", text),
                TokenCount::Exact(*wanted),
                "{text:?}"
            );
        }
    }

    #[test]
    fn only_published_vocabularies_are_exact() {
        for model in [
            "openai/gpt-4o",
            "openai/gpt-5.2-codex",
            "openai/o3-mini",
            "openai/gpt-4.1",
        ] {
            assert!(matches!(count(model, "x"), TokenCount::Exact(1)), "{model}");
        }
        for model in [
            "anthropic/claude-opus-5",
            "google/gemini-3-pro",
            "ollama/llama3",
            "openai/gpt-4",
            "openai/gpt-4-turbo",
            "openai/llama3",
        ] {
            assert!(
                matches!(count(model, "x"), TokenCount::Estimate(1)),
                "{model}"
            );
        }
    }

    #[test]
    fn the_ends_of_a_text_are_cut_by_tokens() {
        let text = "one two three four five six seven";
        assert_eq!(head(text, 3), "one two three");
        assert_eq!(tail(text, 2), " six seven");
        assert_eq!((head(text, 0), tail(text, 0)), ("", ""));
        assert_eq!(head(text, 100), text);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_cut_fits_and_belongs_to_the_text(text in "[a-z é漢🦀\n]{0,200}", limit in 0_usize..40) {
            let (head, tail) = (head(&text, limit), tail(&text, limit));
            prop_assert!(count("openai/o3", head).value() <= limit);
            prop_assert!(count("openai/o3", tail).value() <= limit);
            prop_assert!(text.starts_with(head) && text.ends_with(tail));
        }
    }
}
