//! Cells of views as PostgreSQL takes and gives them.
//!
//! A parameter takes the type the server asks for, a value comes back as the
//! nearest of the four kinds. Never a silent loss: a number that does not fit
//! is an error, one that is no whole number comes back as text.

use std::error::Error;

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::view::Cell;

type Boxed = Box<dyn Error + Sync + Send>;

/// A cell does not fit the type that the server asks for.
#[derive(Debug, thiserror::Error)]
#[error("a parameter does not fit the type `{wanted}`")]
struct Misfit {
    wanted: String,
}

impl ToSql for Cell {
    fn to_sql(&self, wanted: &Type, out: &mut BytesMut) -> Result<IsNull, Boxed> {
        match (self, wanted) {
            (Self::Null, _) => Ok(IsNull::Yes),
            (Self::Integer(value), &Type::INT8) => value.to_sql(wanted, out),
            (Self::Integer(value), &Type::INT4) => i32::try_from(*value)?.to_sql(wanted, out),
            (Self::Integer(value), &Type::INT2) => i16::try_from(*value)?.to_sql(wanted, out),
            (Self::Integer(value), &Type::BOOL) => (*value != 0).to_sql(wanted, out),
            (Self::Text(text), _) if <&str as ToSql>::accepts(wanted) => {
                text.as_str().to_sql(wanted, out)
            }
            (Self::Blob(bytes), &Type::BYTEA) => bytes.as_slice().to_sql(wanted, out),
            _ => Err(Box::new(Misfit {
                wanted: wanted.to_string(),
            })),
        }
    }

    fn accepts(_: &Type) -> bool {
        // Which kind fits is only known with the value.
        true
    }

    to_sql_checked!();
}

impl<'r> FromSql<'r> for Cell {
    fn from_sql(given: &Type, raw: &'r [u8]) -> Result<Self, Boxed> {
        Ok(match *given {
            Type::INT8 => Self::Integer(i64::from_sql(given, raw)?),
            Type::INT4 => Self::Integer(i32::from_sql(given, raw)?.into()),
            Type::INT2 => Self::Integer(i16::from_sql(given, raw)?.into()),
            Type::BOOL => Self::Integer(bool::from_sql(given, raw)?.into()),
            Type::FLOAT8 => Self::Text(f64::from_sql(given, raw)?.to_string()),
            Type::FLOAT4 => Self::Text(f32::from_sql(given, raw)?.to_string()),
            Type::NUMERIC => numeric(raw).ok_or("a number can't be understood")?,
            Type::BYTEA => Self::Blob(raw.to_vec()),
            _ => Self::Text(<&str>::from_sql(given, raw)?.to_owned()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Boxed> {
        Ok(Self::Null)
    }

    fn accepts(given: &Type) -> bool {
        matches!(
            *given,
            Type::INT8
                | Type::INT4
                | Type::INT2
                | Type::BOOL
                | Type::FLOAT8
                | Type::FLOAT4
                | Type::NUMERIC
                | Type::BYTEA
        ) || <&str as FromSql>::accepts(given)
    }
}

/// A `NUMERIC`, which is what `sum` gives: digits to the base 10,000.
fn numeric(raw: &[u8]) -> Option<Cell> {
    const NEGATIVE: u16 = 0x4000;
    let (words, rest) = raw.as_chunks::<2>();
    let mut words = words.iter().copied();
    let count = u16::from_be_bytes(words.next()?);
    let weight = i16::from_be_bytes(words.next()?);
    let sign = u16::from_be_bytes(words.next()?);
    let scale = u16::from_be_bytes(words.next()?);
    let digits: Vec<u16> = words.map(u16::from_be_bytes).collect();
    let known = sign == 0 || sign == NEGATIVE;
    if !rest.is_empty() || digits.len() != usize::from(count) || !known {
        return None;
    }
    let minus = if sign == NEGATIVE { "-" } else { "" };
    let mut whole = String::new();
    let mut fraction = String::new();
    let places = i32::from(weight) + 1;
    for place in 0..places.max(0) {
        let digit = digits.get(usize::try_from(place).ok()?).copied();
        whole.push_str(&format!("{:04}", digit.unwrap_or(0)));
    }
    for _ in places..0 {
        fraction.push_str("0000");
    }
    for digit in digits.iter().skip(usize::try_from(places.max(0)).ok()?) {
        fraction.push_str(&format!("{digit:04}"));
    }
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    if scale == 0 {
        let text = format!("{minus}{whole}");
        return Some(text.parse().map_or(Cell::Text(text), Cell::Integer));
    }
    let width = usize::from(scale);
    let fraction: String = fraction
        .chars()
        .chain(std::iter::repeat('0'))
        .take(width)
        .collect();
    Some(Cell::Text(format!("{minus}{whole}.{fraction}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(weight: i16, sign: u16, scale: u16, digits: &[u16]) -> Vec<u8> {
        let count = u16::try_from(digits.len()).unwrap();
        let mut words = vec![count, weight.cast_unsigned(), sign, scale];
        words.extend_from_slice(digits);
        words.into_iter().flat_map(u16::to_be_bytes).collect()
    }

    #[test]
    fn sums_come_back_as_numbers() {
        for (given, wanted) in [
            (raw(0, 0, 0, &[]), Cell::Integer(0)),
            (raw(0, 0, 0, &[42]), Cell::Integer(42)),
            (raw(0, 0x4000, 0, &[42]), Cell::Integer(-42)),
            (raw(1, 0, 0, &[1]), Cell::Integer(10_000)),
            (raw(1, 0, 0, &[12, 34]), Cell::Integer(120_034)),
            (raw(0, 0, 2, &[3, 1400]), Cell::Text("3.14".into())),
            (raw(-1, 0, 4, &[5]), Cell::Text("0.0005".into())),
            (raw(-2, 0, 8, &[5]), Cell::Text("0.00000005".into())),
        ] {
            assert_eq!(numeric(&given), Some(wanted), "{given:?}");
        }
        let large = numeric(&raw(5, 0, 0, &[1, 0, 0, 0, 0, 1])).unwrap();
        assert_eq!(large, Cell::Text("100000000000000000001".into()));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        assert_eq!(numeric(&raw(0, 0xC000, 0, &[])), None);
        assert_eq!(numeric(&[0, 1, 0]), None);
        assert_eq!(numeric(&raw(0, 0, 0, &[1, 2])[..9]), None);
    }
}
