//! Cursors: where a list goes on, and of which list.
//!
//! Opaque to callers and bound to the operation, its path and its filter: one
//! of another list is refused, not read wrongly. It is no secret and proves
//! nothing; what a caller may see is decided for every page anew.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fluffy_api::Problem;
use fluffy_base::Digest;

use super::backend::Asked;

/// The bytes that bind a cursor to its list.
const BINDING: usize = 8;

/// What may change from page to page.
const FREE: [&str; 3] = ["cursor", "limit", "min_seq"];

/// The cursor that goes on behind `after` in the list that was asked for.
pub(super) fn write(asked: &Asked, after: &str) -> String {
    let mut bytes = binding(asked, after).to_vec();
    bytes.extend_from_slice(after.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// What a cursor goes on behind.
pub(super) fn read(asked: &Asked, cursor: &str) -> Result<String, Box<Problem>> {
    let after = URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|bytes| {
        let (bound, after) = bytes.split_at_checked(BINDING)?;
        let after = std::str::from_utf8(after).ok()?;
        (bound == binding(asked, after)).then(|| after.to_owned())
    });
    after.ok_or_else(|| {
        Box::new(Problem::new(
            "cursor_invalid",
            "the cursor was not given for this list with this filter",
            "start again without a cursor",
        ))
    })
}

fn binding(asked: &Asked, after: &str) -> [u8; BINDING] {
    let mut parts: Vec<&str> = vec!["cursor", asked.operation.spec().id, after];
    parts.extend(asked.path.iter().map(String::as_str));
    parts.push("?");
    for (name, value) in &asked.query {
        // A page adds `after` by itself; the one of the caller is bound.
        if !FREE.contains(&name.as_str()) {
            parts.extend([name.as_str(), value.as_str()]);
        }
    }
    // Lengths keep one part from running into the next.
    let text: Vec<u8> = parts
        .iter()
        .flat_map(|part| format!("{}:{part}", part.len()).into_bytes())
        .collect();
    let digest = Digest::of(&text);
    let mut bound = [0; BINDING];
    bound.copy_from_slice(
        digest
            .as_bytes()
            .first_chunk::<BINDING>()
            .unwrap_or(&[0; BINDING]),
    );
    bound
}
