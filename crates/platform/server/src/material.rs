//! Prepares what a request needs before it can be decided.
//!
//! Credentials are made and only their hashes go on; secrets are sealed and
//! only their names do; images are looked up. Whatever must not be recorded is
//! taken out of the request here, before anything else sees it. What was
//! prepared for a request that is then refused refers to nothing and is swept.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_api::node::EnrolmentToken;
use fluffy_api::types::{
    AddMember, CreateExec, CreateRelease, ExchangeToken, GrantType, IMAGE_LIMITS, ReplaceSecrets,
    UpdateSecrets,
};
use fluffy_base::Digest;
use fluffy_base::id::{
    EnrollmentTokenId, EnvId, ExecSessionId, OrgId, PrincipalId, SecretVersionId, TokenId,
};
use fluffy_control::access::place::Place;
use fluffy_control::call::{
    Basis, NOTHING_SEALED, NewCredential, ResolvedImage, SealedSecret, Shown,
};
use fluffy_control::runtime::Unproven;
use fluffy_control::{Call, CallerKind, Material, Outcome, Refusal, Request, State};
use fluffy_vault::{Bundle, LoadKeyError, ReadBundleError};
use serde_json::{Map, Value, json};

use crate::aside::AsideError;
use crate::credential::{Credential, CredentialKind, recognise};
use crate::exec;
use crate::hashes::Hashes;
use crate::hostnames::Hostnames;
use crate::personal::Personal;
use crate::safe::{Safe, SafeError, SecretOwner};
use crate::sequencer::Sequencer;

/// How long hashes are kept at most: a little longer than what they are for.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Looks an image up.
pub type FindImage = Arc<
    dyn Fn(WantedImage) -> Pin<Box<dyn Future<Output = Result<ResolvedImage, Refusal>> + Send>>
        + Send
        + Sync,
>;

/// An image that somebody wants to release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedImage {
    /// What it is called.
    pub name: String,
    /// Whether the caller may name files of this machine.
    pub nearness: Nearness,
    /// How much it may be, as the operators say now.
    pub limits: fluffy_image::Limits,
}

/// Where a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// On this machine, and owns the platform.
    Local,
    /// Anywhere else.
    Remote,
}

/// Prepares requests; to be cloned freely.
#[derive(Clone)]
pub struct Workshop {
    hashes: Hashes,
    safe: Safe,
    find_image: FindImage,
    hostnames: Hostnames,
    personal: Personal,
    nodes: Option<NodePlace>,
}

/// Where nodes join, and by what they know that they are right.
#[derive(Debug, Clone)]
pub struct NodePlace {
    /// Host and port.
    pub server: String,
    /// The pin of the cluster's root.
    pub pin: Digest,
}

impl fmt::Debug for Workshop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workshop").finish_non_exhaustive()
    }
}

/// What the caller is shown once and nobody keeps.
pub type Once = Map<String, Value>;

impl Workshop {
    /// A workshop that keeps what it makes in these.
    #[must_use]
    pub fn new(hashes: Hashes, safe: Safe, find_image: FindImage) -> Self {
        Self {
            personal: Personal::new(safe.aside().clone()),
            hashes,
            safe,
            find_image,
            hostnames: Hostnames::default(),
            nodes: None,
        }
    }

    /// The same, whose tokens say where they are good.
    #[must_use]
    pub fn with_nodes(mut self, nodes: Option<NodePlace>) -> Self {
        self.nodes = nodes;
        self
    }

    /// The same, which proves hostnames in this way.
    #[must_use]
    pub fn with_hostnames(mut self, hostnames: Hostnames) -> Self {
        self.hostnames = hostnames;
        self
    }

    /// Where it keeps what can be erased.
    #[must_use]
    pub(crate) const fn personal(&self) -> &Personal {
        &self.personal
    }

    /// Where it keeps secrets.
    #[must_use]
    pub(crate) const fn safe(&self) -> &Safe {
        &self.safe
    }

    /// Prepares a write in place, on the state as it is now.
    ///
    /// # Errors
    /// What was sent can't be used, or something that is needed is not there.
    pub async fn prepare(
        &self,
        call: &Call<'_>,
        request: &mut Request,
        states: &Sequencer<State>,
    ) -> Result<Once, Refusal> {
        let operation = request.operation;
        if operation == Operation::ExchangeToken {
            return self.exchange(call, request).await;
        }
        if !is_prepared(operation) {
            return Ok(Once::new());
        }
        // Whoever may not gets nothing prepared; the refusal is on its record.
        let place = states.read(|state| fluffy_control::would_allow(state, call, request));
        let Some(place) = place else {
            strip(request);
            return Ok(Once::new());
        };
        match operation {
            Operation::ReplaceSecrets | Operation::UpdateSecrets => {
                let (org, env) = place.owner.org.zip(place.owner.env).ok_or_else(lost)?;
                let current = states.read(|state| current_secrets(state, env));
                let version = SecretVersionId::from_bits(call.mint.bits(call.now));
                let new = SecretOwner { org, env, version };
                let current = current.map(|version| SecretOwner { version, ..new });
                self.secrets(request, &new, current).await
            }
            Operation::CreateRelease => {
                let limits = states.read(image_limits);
                self.image(call, request, limits).await
            }
            Operation::CreateRoute => Ok(self.given_name(request)),
            Operation::VerifyRoute => {
                let route = request.path.last().and_then(|id| id.parse().ok());
                let unproven = states.read(|state| state.runtime.unproven());
                let mut unproven = unproven.into_iter();
                let wanted =
                    unproven.find(|it| Some(it.route) == route && Some(it.env) == place.owner.env);
                self.hostname(request, wanted).await
            }
            Operation::RotateKeys => {
                // It seals once it is in the ledger: see `conclude`.
                let key = self.safe.make_key().map_err(unsealed)?;
                request.material = Material::Proof(key.to_string());
                Ok(Once::new())
            }
            Operation::RetireKey => {
                let key = request.path.last().and_then(|id| id.parse().ok());
                let found = match key {
                    Some(key) => self.safe.sealed_with(key).await.map_err(unavailable)?,
                    None => None,
                };
                let found = found.unwrap_or_else(|| NOTHING_SEALED.to_owned());
                request.material = Material::Proof(found);
                Ok(Once::new())
            }
            _ => self.credential(call, request, &place).await,
        }
    }

    /// Does what follows here from how a write was decided: a new master key
    /// seals, or, if this was refused or done before, is thrown away.
    pub(crate) fn conclude(&self, request: &Request, outcome: &Outcome) {
        let Material::Proof(key) = &request.material else {
            return;
        };
        let Some(key) = (request.operation == Operation::RotateKeys)
            .then(|| key.parse().ok())
            .flatten()
        else {
            return;
        };
        let concluded = match outcome {
            Outcome::Done { .. } => self.safe.activate(key),
            Outcome::Refused(_) | Outcome::Replayed { .. } => self.safe.discard(key),
            // It is used when somebody agrees.
            Outcome::Parked { .. } => Ok(()),
        };
        if let Err(error) = concluded {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, %key, "a new master key could not be concluded");
        }
    }

    async fn credential(
        &self,
        call: &Call<'_>,
        request: &mut Request,
        place: &Place,
    ) -> Result<Once, Refusal> {
        let operation = request.operation;
        let bits = call.mint.bits(call.now);
        let mut once = Once::new();
        let mut credential = NewCredential::default();
        let (id, field, kind, life) = match operation {
            Operation::CreateEnrollmentToken => {
                let id = EnrollmentTokenId::from_bits(bits).to_string();
                let token = enrolment()?;
                let kind = CredentialKind::Enrolment;
                let kept = self.hashes.keep(kind, token.hash(), &id, Some(DAY * 2));
                kept.await.map_err(unavailable)?;
                once.insert("secret".to_owned(), token.reveal().into());
                if let Some(nodes) = &self.nodes {
                    once.insert("server".to_owned(), nodes.server.clone().into());
                    let pin = format!("sha256:{}", nodes.pin);
                    once.insert("ca_pin".to_owned(), pin.into());
                }
                credential.issued.push(id);
                request.material = Material::Credential(credential);
                return Ok(once);
            }
            Operation::CreateToken => {
                let id = TokenId::from_bits(bits).to_string();
                (id, "secret", CredentialKind::Api, Some(DAY * 91))
            }
            Operation::AddMember => {
                let org = place.owner.org.ok_or_else(lost)?;
                let Some(email) = self.email(org, request, &mut credential).await? else {
                    // Who is in already gets no code.
                    return Ok(once);
                };
                once.insert("email".to_owned(), email.into());
                let id = TokenId::from_bits(bits).to_string();
                (id, "invite_code", CredentialKind::Invite, Some(DAY * 2))
            }
            Operation::CreatePrincipal => {
                let id = PrincipalId::from_bits(bits).to_string();
                (id, "client_secret", CredentialKind::Client, None)
            }
            Operation::RotatePrincipal => {
                let id = TokenId::from_bits(bits).to_string();
                (id, "client_secret", CredentialKind::Client, None)
            }
            Operation::CreateExec => {
                let body: CreateExec = request.read_body()?;
                let id = ExecSessionId::from_bits(bits).to_string();
                // The command may hold what no event should; the node gets it
                // from here.
                let kept = exec::keep_order(&self.safe, &id, &body);
                kept.await.map_err(unsealed)?;
                (id, "token", CredentialKind::Exec, Some(DAY))
            }
            _ => return Ok(once),
        };
        let fresh = Credential::generate(kind).map_err(|_| lost())?;
        // A secret of a service principal says whose it is, by id whatever the
        // path called it, and which.
        let stands_for = match (operation, &place.leaf) {
            (Operation::RotatePrincipal, Some(principal)) => format!("{principal} {id}"),
            _ => id.clone(),
        };
        let kept = self.hashes.keep(kind, fresh.hash, &stands_for, life);
        kept.await.map_err(unavailable)?;
        once.insert(field.to_owned(), fresh.text.expose().as_str().into());
        credential.issued.push(id);
        request.material = Material::Credential(credential);
        Ok(once)
    }

    /// Puts an address aside, where it can be erased; only a keyed hash of it
    /// goes on.
    async fn email(
        &self,
        org: OrgId,
        request: &mut Request,
        credential: &mut NewCredential,
    ) -> Result<Option<String>, Refusal> {
        let body: AddMember = request.read_body()?;
        let Some(email) = body.email.filter(|_| body.principal_id.is_none()) else {
            return Ok(None);
        };
        let email = email.trim().to_owned();
        let lower = email.to_lowercase();
        let hash = self.safe.fingerprint("email", lower.as_bytes());
        let hash = self.safe.counted(hash.ok_or(SafeError::Sealed));
        let hash = hash.map_err(unsealed)?.to_string();
        let kept = self.personal.keep_email(org, &hash, &email);
        kept.await.map_err(unavailable)?;
        credential.email_hash = Some(hash);
        Ok(Some(email))
    }

    /// An invite, a refresh token or a secret, for tokens.
    async fn exchange(&self, call: &Call<'_>, request: &mut Request) -> Result<Once, Refusal> {
        let body: ExchangeToken = request.read_body()?;
        strip(request);
        let (shown, kind) = match body.grant_type {
            GrantType::Invite => (body.code, CredentialKind::Invite),
            GrantType::RefreshToken => (body.refresh_token, CredentialKind::Refresh),
            GrantType::ClientCredentials => (body.client_secret, CredentialKind::Client),
        };
        let hash = shown
            .as_deref()
            .and_then(recognise)
            .filter(|(found, _)| *found == kind);
        let stands_for = match hash {
            Some((kind, hash)) => self.hashes.find(kind, hash).await.map_err(unavailable)?,
            None => None,
        };
        let shown = stands_for.and_then(|text| shown_by(kind, &text, body.client_id.as_deref()));
        let mut credential = NewCredential {
            shown,
            ..NewCredential::default()
        };
        let mut once = Once::new();
        if credential.shown.is_some() {
            self.issue(call, CredentialKind::Access, &mut credential, &mut once)
                .await?;
            if kind != CredentialKind::Client {
                self.issue(call, CredentialKind::Refresh, &mut credential, &mut once)
                    .await?;
            }
        }
        request.material = Material::Credential(credential);
        Ok(once)
    }

    async fn issue(
        &self,
        call: &Call<'_>,
        kind: CredentialKind,
        credential: &mut NewCredential,
        once: &mut Once,
    ) -> Result<(), Refusal> {
        let (field, life) = match kind {
            CredentialKind::Refresh => ("refresh_token", DAY * 31),
            _ => ("access_token", DAY),
        };
        let id = TokenId::from_bits(call.mint.bits(call.now)).to_string();
        let fresh = Credential::generate(kind).map_err(|_| lost())?;
        let kept = self.hashes.keep(kind, fresh.hash, &id, Some(life));
        kept.await.map_err(unavailable)?;
        once.insert(field.to_owned(), fresh.text.expose().as_str().into());
        credential.issued.push(id);
        Ok(())
    }

    async fn image(
        &self,
        call: &Call<'_>,
        request: &mut Request,
        limits: fluffy_image::Limits,
    ) -> Result<Once, Refusal> {
        let nearness = match call.caller.kind {
            CallerKind::Local => Nearness::Local,
            _ => Nearness::Remote,
        };
        let body: CreateRelease = request.read_body()?;
        // What is wrong with the manifest is told by the decision itself, and
        // an image that it does not name can't be looked up.
        let named = || {
            let manifest = fluffy_manifest::Manifest::parse(&body.manifest).ok()?;
            manifest.image.reference
        };
        let Some(image) = body.image.clone().or_else(named) else {
            return Ok(Once::new());
        };
        let wanted = WantedImage {
            name: image,
            nearness,
            limits,
        };
        let found = (self.find_image)(wanted).await?;
        request.material = Material::Image(found);
        Ok(Once::new())
    }

    /// A name below the installation's own suffix is proven from the start.
    fn given_name(&self, request: &mut Request) -> Once {
        let body = request.body.as_ref();
        let hostname = body.and_then(|body| body.get("hostname")?.as_str());
        let given = hostname.and_then(|name| self.hostnames.given(name));
        if let Some(method) = given {
            request.material = Material::Proof(method.to_owned());
        }
        Once::new()
    }

    /// Looks whether a hostname is proven.
    async fn hostname(
        &self,
        request: &mut Request,
        wanted: Option<Unproven>,
    ) -> Result<Once, Refusal> {
        let Some(wanted) = wanted else {
            return Ok(Once::new());
        };
        let proven = self.hostnames.prove(&wanted).await.map_err(|error| {
            let fix = "try again in a moment; an operator names DNS servers with --dns";
            Refusal::new("unavailable", error.to_string(), fix)
        })?;
        if let Some(method) = proven {
            request.material = Material::Proof(method.to_owned());
        }
        Ok(Once::new())
    }

    /// Seals the values of a request; they go no further.
    async fn secrets(
        &self,
        request: &mut Request,
        new: &SecretOwner,
        current: Option<SecretOwner>,
    ) -> Result<Once, Refusal> {
        let mut bundle = Bundle::default();
        let mut basis = Basis::Nothing;
        if request.operation == Operation::ReplaceSecrets {
            let body: ReplaceSecrets = request.read_body()?;
            let given = [
                body.values.is_some(),
                body.file.is_some(),
                body.version_id.is_some(),
            ];
            if given.into_iter().filter(|given| *given).count() != 1 {
                let why = "exactly one of `values`, `file` and `version_id` must be there";
                return Err(invalid(why));
            }
            if body.version_id.is_some() {
                return Ok(Once::new());
            }
            if let Some(file) = body.file {
                bundle = Bundle::parse(file.as_bytes()).map_err(|error| refused(&error))?;
            }
            for (key, value) in body.values.unwrap_or_default() {
                let set = bundle.set(&key, value.into_bytes());
                set.map_err(|error| refused(&error))?;
            }
        } else {
            let body: UpdateSecrets = request.read_body()?;
            basis = Basis::Current(current.map(|current| current.version));
            if let Some(current) = current {
                let file = self.safe.expose(&current).await.map_err(unsealed)?;
                bundle = Bundle::parse(&file).map_err(|error| refused(&error))?;
            }
            for (key, value) in body.set {
                let set = bundle.set(&key, value.into_bytes());
                set.map_err(|error| refused(&error))?;
            }
            for key in &body.unset {
                bundle.unset(key);
            }
        }
        strip(request);
        let kept = self.safe.put(new, &bundle).await.map_err(unsealed)?;
        request.material = Material::Secret(SealedSecret {
            version_id: new.version,
            data_hash: kept.data_hash,
            keys: bundle.keys().map(str::to_owned).collect(),
            size_bytes: kept.size,
            master_key_id: kept.master_key,
            basis,
        });
        Ok(Once::new())
    }
}

/// How much an image may be that is released now.
fn image_limits(state: &State) -> fluffy_image::Limits {
    let cluster = &state.runtime.cluster;
    let mut limits = fluffy_image::Limits::default();
    for kind in IMAGE_LIMITS {
        let limit = cluster.image_limit(kind);
        match kind.name {
            "compressed_bytes" => limits.compressed_bytes = limit,
            "layers" => limits.layers = usize::try_from(limit).unwrap_or(limits.layers),
            // The rest is seen where it is unpacked.
            _ => {}
        }
    }
    limits
}

/// The version of an env's secrets that is current.
fn current_secrets(state: &State, env: EnvId) -> Option<SecretVersionId> {
    let bundle = state.runtime.envs.get(&env)?.bundle?;
    state.runtime.bundles.get(&bundle)?.current
}

/// Whether something is prepared for an operation.
fn is_prepared(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::AddMember
            | Operation::CreateEnrollmentToken
            | Operation::CreateExec
            | Operation::CreatePrincipal
            | Operation::CreateRelease
            | Operation::CreateRoute
            | Operation::CreateToken
            | Operation::ReplaceSecrets
            | Operation::RetireKey
            | Operation::RotateKeys
            | Operation::RotatePrincipal
            | Operation::UpdateSecrets
            | Operation::VerifyRoute
    )
}

/// Takes out of a request what must not be recorded.
fn strip(request: &mut Request) {
    let secret: &[&str] = match request.operation {
        Operation::ReplaceSecrets => &["values", "file"],
        Operation::UpdateSecrets => &["set"],
        Operation::ExchangeToken => &["code", "refresh_token", "client_secret"],
        _ => &[],
    };
    if let Some(Value::Object(fields)) = &mut request.body {
        for name in secret {
            fields.remove(*name);
        }
        if request.operation == Operation::UpdateSecrets {
            fields.insert("set".to_owned(), json!({}));
        }
    }
}

/// What a known credential proves; a secret only for the principal it is of.
fn shown_by(kind: CredentialKind, stands_for: &str, client: Option<&str>) -> Option<Shown> {
    if kind != CredentialKind::Client {
        return stands_for.parse().ok().map(Shown::Token);
    }
    let (principal, rotation) = match stands_for.split_once(' ') {
        Some((principal, rotation)) => (principal, Some(rotation.to_owned())),
        None => (stands_for, None),
    };
    let principal = principal.parse().ok()?;
    let meant: PrincipalId = client?.parse().ok()?;
    (meant == principal).then_some(Shown::Secret {
        principal,
        rotation,
    })
}

fn enrolment() -> Result<EnrolmentToken, Refusal> {
    let mut random = zeroize::Zeroizing::new([0; 32]);
    getrandom::fill(random.as_mut_slice()).map_err(|_| lost())?;
    Ok(EnrolmentToken::of(&random))
}

fn invalid(why: &str) -> Refusal {
    Refusal::new(
        "invalid_argument",
        why,
        "see the operation in the API reference",
    )
}

fn refused(error: &ReadBundleError) -> Refusal {
    let code = match error {
        ReadBundleError::TooLarge | ReadBundleError::TooMany => "too_large",
        _ => "secrets_invalid",
    };
    let fix = "correct it; `fluffy secrets import` checks a file before it sends it";
    Refusal::new(code, error.to_string(), fix)
}

fn lost() -> Refusal {
    Refusal::new("internal", "the system gives no random bits", "")
}

fn unavailable(error: AsideError) -> Refusal {
    let why = error.to_string();
    Refusal::new("unavailable", why, "try again in a moment")
}

pub(crate) fn unsealed(error: SafeError) -> Refusal {
    match error {
        SafeError::Aside(error) => unavailable(error),
        SafeError::Key(error @ LoadKeyError::WithCustodians) => Refusal::new(
            "secrets_key_unavailable",
            error.to_string(),
            "have its custodians make the next one: `fluffy keys init --after`, then `fluffy \
             server unseal` on every server",
        ),
        error => Refusal::new(
            "secrets_key_unavailable",
            error.to_string(),
            "tell an operator: `fluffy keys status` says which key is missing",
        ),
    }
}
