//! Cobertura XML, as a stream of events.
//!
//! No tree is built, no entity expanded and no document type fetched; rates
//! in the report are ignored and counted again. See [`crate::coverage`].

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use super::{Coverage, MAX_LINES, ParseCoverageError, malformed};
use crate::results::workspace_path;

pub(super) fn parse(root: &str, text: &str) -> Result<Coverage, ParseCoverageError> {
    let mut reader = Reader::from_str(text);
    let mut coverage = Coverage::default();
    let mut source: Option<String> = None;
    let mut in_source = false;
    let mut file: Option<String> = None;
    let mut count = 0usize;
    let mut depth = 0usize;
    loop {
        let event = reader
            .read_event()
            .map_err(|error| malformed(&error.to_string()))?;
        match event {
            Event::Start(tag) => {
                depth += 1;
                in_source = tag.local_name().as_ref() == "source";
                if tag.local_name().as_ref() == "class" {
                    file = class_file(root, source.as_deref(), &tag);
                }
                line(&tag, file.as_deref(), &mut coverage, &mut count)?;
            }
            Event::Empty(tag) => line(&tag, file.as_deref(), &mut coverage, &mut count)?,
            Event::Text(text) if in_source && source.is_none() => {
                source = Some(text.trim().to_owned());
            }
            Event::End(tag) => {
                depth = depth.saturating_sub(1);
                in_source = false;
                if tag.local_name().as_ref() == "class" {
                    file = None;
                }
            }
            Event::Eof if depth > 0 => return Err(malformed("it ends in the middle")),
            Event::Eof => return Ok(coverage),
            Event::Text(_) | Event::CData(_) | Event::Comment(_) | Event::Decl(_) => {}
            Event::PI(_) | Event::DocType(_) | Event::GeneralRef(_) => {}
        }
    }
}

/// File names are relative to the first source folder.
fn class_file(root: &str, source: Option<&str>, tag: &BytesStart<'_>) -> Option<String> {
    let name = attribute(tag, "filename")?;
    let joined = match source {
        Some(source) if source.starts_with('/') && !name.starts_with('/') => {
            format!("{}/{name}", source.trim_end_matches('/'))
        }
        Some(_) | None => name,
    };
    workspace_path(root, &joined)
}

fn line(
    tag: &BytesStart<'_>,
    file: Option<&str>,
    coverage: &mut Coverage,
    count: &mut usize,
) -> Result<(), ParseCoverageError> {
    let (Some(file), "line") = (file, tag.local_name().as_ref()) else {
        return Ok(());
    };
    let number = attribute(tag, "number").and_then(|text| text.parse().ok());
    let hits = attribute(tag, "hits").and_then(|text| text.parse().ok());
    let (number, hits) = number
        .zip(hits)
        .ok_or_else(|| malformed("a line without a number"))?;
    *count += 1;
    if *count > MAX_LINES {
        return Err(ParseCoverageError::TooLarge);
    }
    coverage.line(file, number, hits);
    Ok(())
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let found = tag.try_get_attribute(name).ok()??;
    let value = found.normalized_value(XmlVersion::Implicit1_0).ok()?;
    Some(value.into_owned())
}
