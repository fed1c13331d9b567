//! Lines of logs page by page, for who wants all of a window.

use fluffy_control::Refusal;
use serde_json::{Value, json};

use super::Control;
use crate::http::Asked;
use crate::logs::{Cursor, Follower, MOST_TEXT, fitting};

impl Control {
    /// The first lines behind a place, and where whoever has had them is. None
    /// of them is left out for its time: each store tells its lines as it
    /// counted them.
    pub(super) async fn lines_behind(&self, asked: &Asked) -> Result<Value, Refusal> {
        let cursor = asked.query.get("cursor").map_or("", String::as_str);
        let at = match cursor {
            "start" => Ok(Cursor::default()),
            text => text.parse(),
        };
        let at = at.map_err(|_| {
            let why = "it is no place in what was printed";
            let fix = "begin with `start`, and go on with `next_cursor` of each answer";
            Refusal::new("cursor_invalid", why, fix)
        })?;
        let mut who = Follower {
            at: Some(at),
            ..Follower::default()
        };
        let most = self.wanted_lines(asked, &who)?.tail;
        let mut lines = self.lines(asked, &mut who).await?;
        let lengths = lines.iter().map(|it| it.line.line.len());
        let fits = fitting(lengths, (most, MOST_TEXT));
        let next = match lines.get(fits) {
            Some(_) => {
                lines.truncate(fits);
                lines.last().map(|it| it.cursor.clone())
            }
            None => who.at.map(|at| at.to_string()),
        };
        // No store has told where it is: the same is asked again.
        let next = next.filter(|at| !at.is_empty());
        let lines = lines.into_iter().map(|it| it.line).collect::<Vec<_>>();
        let next = next.unwrap_or_else(|| cursor.to_owned());
        Ok(json!({ "items": lines, "next_cursor": next }))
    }
}
