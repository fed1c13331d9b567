//! What a turn costs, as far as prices are known.
//!
//! Prices are a dated data file (`data/prices.json`), and configuration can
//! add to it or correct it. A model without a price has an unknown cost, which
//! is never zero. Never decides about a budget.

use std::collections::BTreeMap;
use std::fmt;

use fluffy_contract::model::Usage;
use serde::Deserialize;

/// The prices that came with this version.
const BUILT_IN: &str = include_str!("../data/prices.json");

/// What configuration may say at most.
const MAX_PRICE: u64 = 1_000_000_000_000;

/// Prices of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    as_of: String,
    models: BTreeMap<String, Tiers>,
}

/// The price of a model, and its other price for long prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiers {
    usual: Price,
    above: Option<(u64, Price)>,
}

/// The price of one model, in millionths of a dollar per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Tokens read.
    pub input: u64,
    /// Tokens read from a cache.
    pub cached: u64,
    /// Tokens written to a cache.
    pub cache_write: u64,
    /// Tokens written.
    pub output: u64,
}

/// A price as it is written: dollars per million tokens, as decimal text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceText {
    /// Tokens read.
    pub input: String,
    /// Tokens read from a cache; as `input` if there is no such price.
    pub cached: Option<String>,
    /// Tokens written to a cache; as `input` if there is no such price.
    pub cache_write: Option<String>,
    /// Tokens written.
    pub output: String,
    /// What a turn with a longer prompt costs, all of it.
    pub above: Option<LongPriceText>,
}

/// The price of turns with long prompts, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongPriceText {
    /// Prompts with more tokens than this are long.
    pub input_tokens: u64,
    /// Tokens read.
    pub input: String,
    /// Tokens read from a cache; as `input` if there is no such price.
    pub cached: Option<String>,
    /// Tokens written to a cache; as `input` if there is no such price.
    pub cache_write: Option<String>,
    /// Tokens written.
    pub output: String,
}

/// Money, in millionths of a millionth of a US dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cost(u128);

/// Why a price is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadPriceError {
    /// Not a decimal number of dollars, or beyond reason.
    #[error("`{text}` is not a price such as 1.25, in dollars per million tokens")]
    Number {
        /// The text, cut.
        text: String,
    },
    /// The file is not what it should be.
    #[error("the list of prices is damaged: {problem}")]
    File {
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
struct File {
    version: u32,
    as_of: String,
    models: BTreeMap<String, PriceText>,
}

impl Prices {
    /// The prices that came with this version.
    ///
    /// # Errors
    /// The data file is damaged; a test keeps that from ever happening.
    pub fn built_in() -> Result<Self, ReadPriceError> {
        let damaged = |problem: String| ReadPriceError::File { problem };
        let file: File = serde_json::from_str(BUILT_IN).map_err(|e| damaged(e.to_string()))?;
        if file.version != 1 {
            return Err(damaged(format!("version {}", file.version)));
        }
        let mut prices = Self {
            as_of: file.as_of,
            models: BTreeMap::new(),
        };
        for (model, text) in &file.models {
            prices.set(model, text)?;
        }
        Ok(prices)
    }

    /// Sets or corrects a price, as configuration does.
    ///
    /// # Errors
    /// The text is no price.
    pub fn set(&mut self, model: &str, text: &PriceText) -> Result<(), ReadPriceError> {
        let price = |input: &str, cached: &Option<String>, write: &Option<String>, output: &str| {
            let input = number(input)?;
            let optional = |text: &Option<String>| text.as_deref().map_or(Ok(input), number);
            Ok(Price {
                input,
                cached: optional(cached)?,
                cache_write: optional(write)?,
                output: number(output)?,
            })
        };
        let usual = price(&text.input, &text.cached, &text.cache_write, &text.output)?;
        let above = text.above.as_ref().map(|long| {
            let price = price(&long.input, &long.cached, &long.cache_write, &long.output)?;
            Ok((long.input_tokens, price))
        });
        let above = above.transpose()?;
        self.models.insert(model.to_owned(), Tiers { usual, above });
        Ok(())
    }

    /// The day the built-in prices are of.
    #[must_use]
    pub fn as_of(&self) -> &str {
        &self.as_of
    }

    /// The price of `provider/model`, with or without a date at its end, for
    /// a turn that reads this many tokens.
    #[must_use]
    pub fn of(&self, model: &str, input_tokens: u64) -> Option<Price> {
        let known = self.models.get(model);
        let tiers = known.or_else(|| self.models.get(without_date(model)))?;
        match tiers.above {
            Some((limit, price)) if input_tokens > limit => Some(price),
            Some(_) | None => Some(tiers.usual),
        }
    }

    /// What a turn cost; nothing if the price is not known.
    #[must_use]
    pub fn cost(&self, model: &str, usage: &Usage) -> Option<Cost> {
        let price = self.of(model, usage.input_tokens)?;
        let plain = usage.input_tokens.saturating_sub(usage.cached_tokens);
        let plain = plain.saturating_sub(usage.cache_write_tokens);
        let part = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let sum = part(plain, price.input)
            .saturating_add(part(usage.cached_tokens, price.cached))
            .saturating_add(part(usage.cache_write_tokens, price.cache_write))
            .saturating_add(part(usage.output_tokens, price.output));
        Some(Cost(sum))
    }
}

impl Cost {
    /// In millionths of a dollar, rounded up.
    #[must_use]
    pub fn micro_dollars(self) -> u64 {
        u64::try_from(self.0.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.micro_dollars();
        write!(f, "${}.{:04}", micros / 1_000_000, micros % 1_000_000 / 100)
    }
}

/// Millionths of a dollar in a decimal text, exactly.
fn number(text: &str) -> Result<u64, ReadPriceError> {
    let wrong = || ReadPriceError::Number {
        text: text.chars().take(32).collect(),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| wrong())?;
    let micros = whole
        .checked_mul(1_000_000)
        .and_then(|micros| micros.checked_add(fraction));
    micros
        .filter(|micros| *micros <= MAX_PRICE)
        .ok_or_else(wrong)
}

/// The name without `-20250929`, `-2025-08-07`, `@20250929` or `-latest`.
fn without_date(model: &str) -> &str {
    let model = model.strip_suffix("-latest").unwrap_or(model);
    let is_date = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    for separator in ['-', '@'] {
        if let Some((name, date)) = model.rsplit_once(separator)
            && is_date(date)
        {
            return name;
        }
    }
    let tail = model.len().checked_sub(11).and_then(|at| model.get(at..));
    match tail {
        Some(tail) if tail.starts_with('-') && is_date(&tail.replace('-', "")) => {
            model.strip_suffix(tail).unwrap_or(model)
        }
        Some(_) | None => model,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input: u64, cached: u64, cache_write: u64, output: u64) -> Usage {
        Usage {
            input_tokens: input,
            cached_tokens: cached,
            cache_write_tokens: cache_write,
            output_tokens: output,
            reasoning_tokens: 0,
        }
    }

    #[test]
    fn costs_are_exact_and_unknown_is_not_zero() {
        let prices = Prices::built_in().unwrap();
        let million = usage(1_000_000, 0, 0, 1_000_000);
        let cost = prices.cost("anthropic/claude-opus-5", &million).unwrap();
        assert_eq!(cost.micro_dollars(), 30_000_000);
        assert_eq!(cost.to_string(), "$30.0000");
        // 100 plain, 1000 cached, 200 written, 50 out.
        let mixed = usage(1300, 1000, 200, 50);
        let cost = prices.cost("anthropic/claude-opus-5", &mixed).unwrap();
        assert_eq!(cost.micro_dollars(), 500 + 500 + 1250 + 1250);
        assert_eq!(prices.cost("openai/no-such-model", &mixed), None);
        assert_eq!(prices.cost("ollama/claude-opus-5", &mixed), None);
    }

    #[test]
    fn dated_names_have_the_price_of_their_family() {
        let prices = Prices::built_in().unwrap();
        for model in [
            "anthropic/claude-haiku-4-5-20251001",
            "anthropic/claude-haiku-4-5@20251001",
            "anthropic/claude-haiku-4-5-latest",
        ] {
            let family = prices.of("anthropic/claude-haiku-4-5", 1);
            assert!(family.is_some() && prices.of(model, 1) == family, "{model}");
        }
        assert!(prices.of("openai/gpt-5-2025-08-07", 1).is_some());
        assert_eq!(
            prices.of("openai/gpt-5-mini-2025-08-07", 1),
            prices.of("openai/gpt-5-mini", 1)
        );
        assert!(prices.of("openai/gpt-5-turbo-ultra", 1).is_none());
        assert!(prices.of("x", 1).is_none() && prices.of("é-20251001", 1).is_none());
    }

    #[test]
    fn long_prompts_have_their_own_price() {
        let prices = Prices::built_in().unwrap();
        let cost = |input| {
            prices
                .cost("google/gemini-2.5-pro", &usage(input, 0, 0, 100))
                .unwrap()
        };
        assert_eq!(cost(200_000).micro_dollars(), 250_000 + 1000);
        assert_eq!(cost(200_001).micro_dollars(), 500_002 + 1500 + 1);
    }

    #[test]
    fn configuration_adds_and_corrects() {
        let mut prices = Prices::built_in().unwrap();
        let text = |input: &str| PriceText {
            input: input.into(),
            cached: None,
            cache_write: None,
            output: "0.000001".into(),
            above: None,
        };
        prices.set("local/m", &text("0")).unwrap();
        assert_eq!(
            prices
                .cost("local/m", &usage(9, 0, 0, 1))
                .unwrap()
                .micro_dollars(),
            1
        );
        for wrong in [
            "",
            "-1",
            "1e5",
            "1.",
            ".5",
            "1.0000001",
            "1,5",
            "99999999999999999999",
        ] {
            assert!(prices.set("m", &text(wrong)).is_err(), "{wrong}");
        }
    }
}
