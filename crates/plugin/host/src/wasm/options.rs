//! What a WASM plugin may use: every option is applied, no other is taken.
//!
//! Plain values, checked when they are read. See `worker.rs` for who applies
//! them.

use std::time::Duration;

use fluffy_base::{ByteSize, Span};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The most calls of one plugin at a time.
pub const MAX_CONCURRENCY: u32 = 16;

/// The most memory of one instance.
const MAX_MEMORY: ByteSize = ByteSize(1 << 30);

/// The most elements of all its tables together.
const MAX_TABLE_ELEMENTS: u64 = 1_000_000;

/// The longest call.
const MAX_CALL: Span = Span { millis: 3_600_000 };

/// What a WASM plugin may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasmOptions {
    /// Units of work in one call.
    pub fuel: Fuel,
    /// How long a call may take, waiting included.
    pub call_timeout: Span,
    /// The memory of one instance.
    pub memory: ByteSize,
    /// The elements of all its tables together.
    pub table_elements: u64,
    /// How long an instance lives.
    pub instances: Instances,
    /// How many calls run at a time.
    pub concurrency: u32,
}

/// Units of work in one call, about one per instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fuel {
    /// What suits the language the plugin was written in.
    ByLanguage,
    /// This much.
    Units(u64),
    /// Not counted; the time still holds.
    Off,
}

/// How long an instance lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Instances {
    /// For one call.
    PerCall,
    /// For all calls, one at a time.
    Stateful,
}

/// An option that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WasmOptionError {
    /// There is no such option.
    #[error("there is no option `{name}`")]
    Unknown {
        /// What was given.
        name: String,
    },
    /// It has no such value.
    #[error("the option `{name}` cannot be this; it is {wanted}")]
    Value {
        /// Which option.
        name: &'static str,
        /// What it can be.
        wanted: &'static str,
    },
}

impl Default for WasmOptions {
    fn default() -> Self {
        Self {
            fuel: Fuel::ByLanguage,
            call_timeout: Span { millis: 30_000 },
            memory: ByteSize(64 << 20),
            table_elements: 100_000,
            instances: Instances::PerCall,
            concurrency: 8,
        }
    }
}

impl WasmOptions {
    /// Reads options by name; those that are not given have their default.
    ///
    /// # Errors
    /// An unknown option, or a value out of its range.
    pub fn parse(given: &Map<String, Value>) -> Result<Self, WasmOptionError> {
        let mut options = Self::default();
        for (name, value) in given {
            options.set(name, value)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), WasmOptionError> {
        match name {
            "fuel" => {
                let units = value.as_u64().filter(|units| *units > 0);
                self.fuel = match (units, value.as_str()) {
                    (Some(units), _) => Fuel::Units(units),
                    (None, Some("off")) => Fuel::Off,
                    (None, Some("default")) => Fuel::ByLanguage,
                    _ => return Err(wrong("fuel", "a number, `default` or `off`")),
                };
            }
            "call_timeout" => {
                let parsed = value.as_str().and_then(|text| text.parse::<Span>().ok());
                self.call_timeout = parsed
                    .filter(|span| span.millis > 0 && span.millis <= MAX_CALL.millis)
                    .ok_or_else(|| wrong("call_timeout", "a time of up to 1h, such as `30s`"))?;
            }
            "memory" => {
                let parsed = value
                    .as_str()
                    .and_then(|text| text.parse::<ByteSize>().ok());
                self.memory = parsed
                    .filter(|size| size.0 > 0 && size.0 <= MAX_MEMORY.0)
                    .ok_or_else(|| wrong("memory", "a size of up to 1GiB, such as `64MiB`"))?;
            }
            "table_elements" => {
                self.table_elements = value
                    .as_u64()
                    .filter(|count| *count <= MAX_TABLE_ELEMENTS)
                    .ok_or_else(|| wrong("table_elements", "a number of up to 1,000,000"))?;
            }
            "stateful" => {
                self.instances = match value.as_bool() {
                    Some(true) => Instances::Stateful,
                    Some(false) => Instances::PerCall,
                    None => return Err(wrong("stateful", "`true` or `false`")),
                };
            }
            "concurrency" => {
                self.concurrency = value
                    .as_u64()
                    .and_then(|count| u32::try_from(count).ok())
                    .filter(|count| (1..=MAX_CONCURRENCY).contains(count))
                    .ok_or_else(|| wrong("concurrency", "a number from 1 to 16"))?;
            }
            name => {
                let name = name.chars().take(64).collect();
                return Err(WasmOptionError::Unknown { name });
            }
        }
        Ok(())
    }

    /// How long a call may take.
    #[must_use]
    pub fn call_time(&self) -> Duration {
        Duration::from(self.call_timeout)
    }
}

fn wrong(name: &'static str, wanted: &'static str) -> WasmOptionError {
    WasmOptionError::Value { name, wanted }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Result<WasmOptions, WasmOptionError> {
        WasmOptions::parse(value.as_object().unwrap())
    }

    #[test]
    fn options_are_taken_and_no_other() {
        let all = json!({
            "fuel": 5, "call_timeout": "2s", "memory": "1MiB", "table_elements": 7,
            "stateful": true, "concurrency": 3,
        });
        let wanted = WasmOptions {
            fuel: Fuel::Units(5),
            call_timeout: Span { millis: 2_000 },
            memory: ByteSize(1 << 20),
            table_elements: 7,
            instances: Instances::Stateful,
            concurrency: 3,
        };
        assert_eq!(parse(&all), Ok(wanted));
        assert_eq!(parse(&json!({})), Ok(WasmOptions::default()));
        assert_eq!(parse(&json!({"fuel": "off"})).unwrap().fuel, Fuel::Off);
        let name = "fule".to_owned();
        assert_eq!(
            parse(&json!({"fule": 5})),
            Err(WasmOptionError::Unknown { name })
        );
        for bad in [
            json!({"fuel": 0}),
            json!({"fuel": -1}),
            json!({"fuel": "much"}),
            json!({"call_timeout": "2h"}),
            json!({"call_timeout": "0s"}),
            json!({"memory": "2GiB"}),
            json!({"memory": 5}),
            json!({"table_elements": 1_000_001}),
            json!({"stateful": "yes"}),
            json!({"concurrency": 0}),
            json!({"concurrency": 17}),
        ] {
            let refused = parse(&bad);
            assert!(
                matches!(refused, Err(WasmOptionError::Value { .. })),
                "{bad}"
            );
        }
    }
}
