//! Answers what a plugin's worker asks, through the plugin's services.
//!
//! Every question ends in a decision of policy there; nothing is answered from
//! anywhere else.

use fluffy_wasm::plugin::{Ask, Fault, Level, Reply};

use super::wire::Question;
use crate::log;
use crate::services::{ServiceError, Services};

/// The answer to one question.
pub(super) async fn answer(services: &Services, question: Question) -> Result<Reply, Fault> {
    let answered = match question {
        Question::MayConnect { address } => services.may_connect(&address).map(|()| Reply::Done),
        Question::Ask(ask) => of_services(services, ask).await?,
    };
    answered.map_err(fault)
}

async fn of_services(services: &Services, ask: Ask) -> Result<Result<Reply, ServiceError>, Fault> {
    Ok(match ask {
        Ask::KvGet { key } => services.kv_get(&key).await.map(Reply::Bytes),
        Ask::KvSet { key, value } => services.kv_set(&key, value).await.map(|()| Reply::Done),
        Ask::KvDelete { key } => services.kv_delete(&key).await.map(|()| Reply::Done),
        Ask::KvList { prefix, after } => services.kv_list(&prefix, &after).await.map(Reply::Names),
        Ask::Config => services.configuration().map(|map| {
            let text = serde_json::to_string(map);
            Reply::Text(text.unwrap_or_default())
        }),
        Ask::Log { level, text } => services.log(of(level), &text).map(|()| Reply::Done),
        Ask::FsRead { path } => {
            let read = services.fs_read(&path).await;
            read.map(|content| Reply::Bytes(Some(content)))
        }
        Ask::FsList { path } => services.fs_list(&path).await.map(Reply::Names),
        Ask::FsWrite { path, content } => services
            .fs_write(&path, content)
            .await
            .map(|()| Reply::Done),
        // A worker fetches itself, where the proxy is.
        Ask::Fetch(_) => return Err(Fault::Failed("the host fetches nothing".to_owned())),
    })
}

fn of(level: Level) -> log::Level {
    match level {
        Level::Trace => log::Level::Trace,
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    }
}

fn fault(error: ServiceError) -> Fault {
    let text = error.to_string();
    match error {
        ServiceError::Denied { .. } => Fault::Denied(text),
        ServiceError::NotFound { .. } => Fault::NotFound(text),
        ServiceError::TooLarge { .. } => Fault::TooLarge(text),
        ServiceError::Full { .. } => Fault::Full(text),
        ServiceError::Invalid { .. } => Fault::Invalid(text),
        ServiceError::Failed { .. } => Fault::Failed(text),
    }
}
