//! Calls of tools that are not built in, through the same gates as all others.
//!
//! The workflow looks first, then policy, in the session's name and for the
//! sandbox the source runs in: it never gets more than the session has. What
//! comes back is bounded here and data like any other result.

use std::time::Duration;

use fluffy_contract::tool::{CallToolError, Effect, Repeat, ToolOutput};
use fluffy_tools::call::ForeignCall;
use fluffy_tools::foreign::MAX_ANSWER;
use fluffy_tools::registry::Checked;

use super::{RouteError, Router, failed};

impl Router<'_> {
    /// A call of a tool that somebody else brought.
    pub(super) async fn foreign(
        &self,
        checked: &Checked,
        call: &ForeignCall,
    ) -> Result<ToolOutput, RouteError> {
        if call.effect == Effect::Acts {
            let may = self.course.may_act(&checked.tool);
            may.map_err(RouteError::Refused)?;
        }
        let mut called = self.foreign_once(checked, call).await?;
        if let (Err(CallToolError::Unavailable { .. }), Repeat::Once { after }) =
            (&called, checked.handling.repeat)
        {
            tokio::time::sleep(after).await;
            called = self.foreign_once(checked, call).await?;
        }
        Ok(called.unwrap_or_else(|error| failed(error.to_string())))
    }

    async fn foreign_once(
        &self,
        checked: &Checked,
        call: &ForeignCall,
    ) -> Result<Result<ToolOutput, CallToolError>, RouteError> {
        let desk = self.desk.inside(call.source.sandbox());
        let permit = self.all(&desk, checked).await?;
        let calling = call.source.call(permit, &call.tool, &call.arguments);
        let called = match tokio::time::timeout(call.timeout, calling).await {
            Ok(called) => called,
            Err(_) => Ok(failed(late(call.timeout))),
        };
        Ok(
            called.map(|output| match output.content.len() > MAX_ANSWER {
                true => failed(format!("it answered more than {MAX_ANSWER} bytes")),
                false => output,
            }),
        )
    }
}

fn late(timeout: Duration) -> String {
    format!("it did not answer within {} ms", timeout.as_millis())
}
