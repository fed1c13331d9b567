//! What a command of the platform is about: server, login, org, app, env.
//!
//! Each is taken from the first place that names it: a flag, a variable of the
//! environment, for the app the manifest that is meant, the context. Without a
//! server it is the one of `fluffy up` on this machine, where everything has a
//! name already. Must never send a token to a server that it is not from, nor
//! take another app because a manifest cannot be read.

use std::path::{Path, PathBuf};

use fluffy_config::{Paths, env};
use fluffy_manifest::Manifest;
use fluffy_report::{ExitCode, Report};
use fluffy_secret::SecretString;

use super::contexts::{Context, Contexts, Login};
use super::manifest;
use crate::failure::Failure;
use crate::session::Session;

/// The context of what is asked without one.
const LOCAL: &str = "local";

/// The org and the env that `fluffy up` makes.
const LOCAL_ORG: &str = "local";
const LOCAL_ENV: &str = "dev";

/// What flags say; each may be silent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    pub(crate) context: Option<String>,
    pub(crate) server: Option<String>,
    pub(crate) org: Option<String>,
    pub(crate) app: Option<String>,
    pub(crate) env: Option<String>,
    /// The manifest that is meant instead of the nearest.
    pub(crate) manifest: Option<PathBuf>,
}

/// What a command is about.
pub(crate) struct Target {
    /// The name that logins are kept by.
    pub(crate) context: String,
    pub(crate) server: Server,
    /// Where the server was found.
    pub(crate) server_from: Origin,
    /// A token that was given for this call alone.
    pub(crate) token: Option<SecretString>,
    pub(crate) org: Option<Named>,
    pub(crate) app: Option<Named>,
    pub(crate) env: Option<Named>,
    /// The manifest that should name the app, and cannot be read.
    unread: Option<PathBuf>,
}

/// A name and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) from: Origin,
}

/// Where a name was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Variable,
    Manifest,
    Context,
    Local,
}

impl Origin {
    /// The place as people read it; `name` is what was found there.
    pub(crate) fn told(self, name: &str, context: &str) -> String {
        match self {
            Self::Flag => format!("--{name}"),
            Self::Variable => format!("FLUFFY_{}", name.to_ascii_uppercase()),
            Self::Manifest => "fluffy.toml".to_owned(),
            Self::Context => format!("context `{context}`"),
            Self::Local => "`fluffy up` on this machine".to_owned(),
        }
    }

    /// Whether a person named it for this very call.
    pub(crate) const fn is_explicit(self) -> bool {
        matches!(self, Self::Flag | Self::Variable)
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    /// On this machine.
    Socket(PathBuf),
    /// Anywhere, by TLS.
    Https {
        /// `https://host[:port]`.
        url: String,
        /// Certificates to trust instead of the web's.
        ca: Option<PathBuf>,
    },
}

impl Server {
    /// Reads `https://host[:port]` or `unix:PATH`.
    pub(crate) fn parse(text: &str, ca: Option<&str>) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Socket(PathBuf::from(path)));
        }
        match text
            .strip_prefix("https://")
            .map(|rest| rest.trim_end_matches('/'))
        {
            Some(rest) if !rest.is_empty() && !rest.contains(['/', '@', '?']) => Ok(Self::Https {
                url: format!("https://{rest}"),
                ca: ca.map(PathBuf::from),
            }),
            _ => Err(
                Report::new(ExitCode::Usage, format!("`{text}` is not a server"))
                    .fix("write `https://HOST:PORT`, or `unix:PATH` for a socket on this machine")
                    .into(),
            ),
        }
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Https { url, .. } => f.write_str(url),
        }
    }
}

impl Target {
    /// Finds what is meant; nothing is asked of anybody.
    pub(crate) fn find(session: &Session, flags: &Flags) -> Result<Self, Failure> {
        let paths = &session.here()?.paths;
        let contexts = Contexts::read(paths)?;
        let named = flags
            .context
            .clone()
            .or_else(|| session.variable(env::FLUFFY_CONTEXT));
        let context = match named.or_else(|| contexts.current.clone()) {
            Some(name) => Some((contexts.get(&name)?.clone(), name)),
            None => None,
        };
        let (context, name) = context.unwrap_or_else(|| (Context::default(), LOCAL.to_owned()));
        let by_flag = flags.server.clone().map(|text| (text, Origin::Flag));
        let named = by_flag
            .or_else(|| Some((session.variable(env::FLUFFY_SERVER)?, Origin::Variable)))
            .or_else(|| Some((context.server.clone()?, Origin::Context)));
        let (server, server_from) = match named {
            Some((text, from)) => (Server::parse(&text, context.ca.as_deref())?, from),
            None => (Server::Socket(local_socket(paths)), Origin::Local),
        };
        let is_local = server == Server::Socket(local_socket(paths));
        let by = |name: Option<String>, from| name.map(|name| Named { name, from });
        let given = |flag: &Option<String>, variable: &str| {
            let by_flag = by(flag.clone(), Origin::Flag);
            by_flag.or_else(|| by(session.variable(variable), Origin::Variable))
        };
        let kept = |name: &Option<String>| by(name.clone(), Origin::Context);
        let app = match given(&flags.app, env::FLUFFY_APP) {
            Some(app) => Ok(Some(app)),
            None => manifest_app(session, flags.manifest.as_deref()).map(|written| {
                let app = by(written, Origin::Manifest);
                app.or_else(|| kept(&context.app))
            }),
        };
        let local = |name: &str| {
            is_local.then(|| Named {
                name: name.to_owned(),
                from: Origin::Local,
            })
        };
        let org = given(&flags.org, env::FLUFFY_ORG).or_else(|| kept(&context.org));
        let env = given(&flags.env, env::FLUFFY_ENV).or_else(|| kept(&context.env));
        Ok(Self {
            org: org.or_else(|| local(LOCAL_ORG)),
            env: env.or_else(|| local(LOCAL_ENV)),
            unread: app.as_ref().err().cloned(),
            app: app.unwrap_or_default(),
            token: session.variable(env::FLUFFY_TOKEN).map(SecretString::from),
            context: name,
            server,
            server_from,
        })
    }

    /// What the context is logged in with at this server.
    pub(crate) fn login(&self, paths: &Paths) -> Login {
        Login::read(paths, &self.context, &self.server.to_string())
    }

    /// The org, app or env that a path names, or how to name it.
    pub(crate) fn part(&self, name: &str) -> Result<&Named, Failure> {
        let found = match name {
            "org" => &self.org,
            "app" => &self.app,
            _ => &self.env,
        };
        if let ("app", Some(file)) = (name, &self.unread) {
            // What is wrong with it is what there is to say.
            manifest::read_valid(file)?;
        }
        found.as_ref().ok_or_else(|| {
            let upper = name.to_ascii_uppercase();
            let report = Report::new(ExitCode::Usage, format!("which {name}?"))
                .why(format!(
                    "neither --{name}, FLUFFY_{upper} nor a context names one"
                ))
                .fix(format!("add --{name} {upper}"));
            let fix = match name {
                "app" => "or name it in `fluffy.toml`: [app] name = \"…\"".to_owned(),
                _ => format!("or keep it: fluffy context set NAME --{name} {upper}"),
            };
            report.fix(fix).into()
        })
    }

    /// `org/app/env`, as far as it is known and asked for.
    pub(crate) fn shown(&self, parts: &[&str]) -> String {
        let known = parts.iter().filter_map(|part| self.part(part).ok());
        let names: Vec<&str> = known.map(|named| named.name.as_str()).collect();
        names.join("/")
    }
}

/// The data directory of `fluffy up`.
pub(crate) fn up_directory(paths: &Paths) -> PathBuf {
    paths.state_dir.join("up")
}

/// Where `fluffy up` listens on this machine.
pub(crate) fn local_socket(paths: &Paths) -> PathBuf {
    up_directory(paths).join("api.sock")
}

/// The app that the manifest names which is meant; the file, if that cannot be
/// found out.
fn manifest_app(session: &Session, named: Option<&Path>) -> Result<Option<String>, PathBuf> {
    let nearest = || manifest::nearest(&session.folder().ok()?);
    let Some(file) = named.map(Path::to_owned).or_else(nearest) else {
        return Ok(None);
    };
    let Ok(text) = manifest::read(&file) else {
        return Err(file);
    };
    match Manifest::parse(&text) {
        Ok(manifest) => Ok(manifest.app.name),
        // An error elsewhere in it does not make it mean another app.
        Err(_) => named_anyway(&text).map(Some).ok_or(file),
    }
}

/// The app that a manifest with errors names.
fn named_anyway(text: &str) -> Option<String> {
    let table: toml::Table = toml::from_str(text).ok()?;
    let name = table.get("app")?.get("name")?.as_str()?;
    Some(name.to_owned())
}
