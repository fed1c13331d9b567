//! One exchange with one registry: requests, redirects, and who we are.
//!
//! A token or password is sent to the registry and its realm only; whoever
//! else it sends us to gets none. Keeps the connection between requests, and
//! forgets everything at the end.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluffy_base::Digest;
use fluffy_manifest::ImageReference;
use fluffy_secret::SecretString;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use zeroize::Zeroizing;

use crate::error::FetchError;

use super::challenge::{Challenge, bearer, token_form, token_path};
use super::origin::{Location, Origin, Scheme};
use super::way::Link;
use super::{Credential, Proof, Registry};

/// The most redirects of one request.
const MOST_REDIRECTS: usize = 5;

/// The most bytes of an answer whose content does not matter, or of a token.
const SMALL: u64 = 64 << 10;

/// The longest wish to wait that is told on.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// One exchange with one registry.
pub(super) struct Session<'a> {
    registry: &'a Registry,
    reference: &'a ImageReference,
    credential: Option<&'a Credential>,
    origin: Origin,
    authorization: Option<HeaderValue>,
    /// Who gives out the registry's tokens and may not learn the credential.
    unknown_realm: Option<String>,
    kept: Option<Link>,
}

/// What is asked.
#[derive(Clone, Copy)]
struct Asked<'a> {
    accept: &'a str,
    /// The first byte that is wanted.
    from: u64,
    /// A form to send; its memory is wiped.
    form: Option<&'a Zeroizing<String>>,
}

/// An answer whose body has not been read yet.
#[derive(Debug)]
pub(super) struct Answer {
    origin: Origin,
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    link: Link,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        registry: &'a Registry,
        reference: &'a ImageReference,
        credential: Option<&'a Credential>,
    ) -> Self {
        Self {
            registry,
            reference,
            credential,
            origin: Origin::of(reference, &registry.insecure, &registry.internal),
            authorization: None,
            unknown_realm: None,
            kept: None,
        }
    }

    /// Asks for something of the repository, and shows who we are if asked.
    pub(super) async fn ask(&mut self, what: &str, accept: &str) -> Result<Answer, FetchError> {
        self.ask_from(what, accept, 0).await
    }

    /// The same without its first bytes; whoever cannot leave them out sends
    /// all of it, see [`Answer::begins`].
    pub(super) async fn ask_from(
        &mut self,
        what: &str,
        accept: &str,
        from: u64,
    ) -> Result<Answer, FetchError> {
        let path = format!("/v2/{}/{what}", self.reference.repository());
        let answer = self.follow(&path, accept, from).await?;
        // Whoever we were sent to has no say in who we are.
        let challenged = answer.status == StatusCode::UNAUTHORIZED && answer.origin == self.origin;
        let answer = match challenged && self.authorization.is_none() {
            true => {
                let challenge = Challenge::of(&answer.headers);
                self.drain(answer).await;
                self.authorization = Some(self.authorize(challenge, what).await?);
                self.follow(&path, accept, from).await?
            }
            false => answer,
        };
        match answer.status {
            StatusCode::OK => Ok(answer),
            StatusCode::PARTIAL_CONTENT if from > 0 => Ok(answer),
            _ => Err(self.refusal(&answer, what)),
        }
    }

    /// Reads a whole body, which may have `most` bytes.
    pub(super) async fn read(&mut self, answer: Answer, most: u64) -> Result<Vec<u8>, FetchError> {
        let mut answer = answer;
        let too_large = |answer: &Answer| FetchError::Answer {
            host: answer.host(),
            why: "a document is larger than it may be",
        };
        if answer.length().is_some_and(|length| length > most) {
            return Err(too_large(&answer));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        while let Some(piece) = answer.next().await? {
            if piece.len() > most.saturating_sub(all.len()) {
                return Err(too_large(&answer));
            }
            all.extend_from_slice(&piece);
        }
        if answer.origin == self.origin {
            self.kept = Some(answer.link);
        }
        Ok(all)
    }

    /// Reads what does not matter, so that the connection can be used again.
    async fn drain(&mut self, answer: Answer) {
        let _ = self.read(answer, SMALL).await;
    }

    /// Sends a request, and follows where the answer leads.
    async fn follow(&mut self, path: &str, accept: &str, from: u64) -> Result<Answer, FetchError> {
        let mut location = Location {
            origin: self.origin.clone(),
            path: path.to_owned(),
        };
        for _ in 0..=MOST_REDIRECTS {
            // Only the registry itself learns who we are.
            let authorization = match location.origin == self.origin {
                true => self.authorization.clone(),
                false => None,
            };
            let asked = Asked {
                accept,
                from,
                form: None,
            };
            let answer = self.send(&location, asked, authorization).await?;
            if !answer.status.is_redirection() {
                return Ok(answer);
            }
            location = self.next(&answer)?;
            self.drain(answer).await;
        }
        let why = "it redirects too often";
        let host = location.origin.authority();
        Err(FetchError::Answer { host, why })
    }

    /// Where a redirect leads: in the clear only back to who is spoken to so.
    fn next(&self, answer: &Answer) -> Result<Location, FetchError> {
        let wrong = |why| FetchError::Answer {
            host: answer.host(),
            why,
        };
        let text = answer.headers.get(header::LOCATION);
        let text = text.and_then(|value| value.to_str().ok());
        let next = text.and_then(|text| Location::read(text, &answer.origin));
        let next = next.ok_or_else(|| wrong("it redirects to nowhere"))?;
        match next.origin.scheme == Scheme::Https || next.origin == self.origin {
            true => Ok(next),
            false => Err(wrong("it redirects to an address without TLS")),
        }
    }

    async fn send(
        &mut self,
        location: &Location,
        asked: Asked<'_>,
        authorization: Option<HeaderValue>,
    ) -> Result<Answer, FetchError> {
        let request = || {
            let mut request = Request::builder()
                .method(match asked.form {
                    Some(_) => Method::POST,
                    None => Method::GET,
                })
                .uri(location.path.as_str())
                .header(header::HOST, location.origin.authority())
                .header(
                    header::USER_AGENT,
                    concat!("fluffy/", env!("CARGO_PKG_VERSION")),
                )
                .header(header::ACCEPT, asked.accept)
                .header(header::ACCEPT_ENCODING, "identity");
            if asked.from > 0 {
                request = request.header(header::RANGE, format!("bytes={}-", asked.from));
            }
            if let Some(authorization) = &authorization {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let wrong = |_| FetchError::Answer {
                host: location.origin.authority(),
                why: "it has an address that no request can name",
            };
            let body = match asked.form {
                Some(form) => {
                    let kind = "application/x-www-form-urlencoded";
                    request = request.header(header::CONTENT_TYPE, kind);
                    Bytes::from_owner(form.clone())
                }
                None => Bytes::new(),
            };
            request.body(Full::new(body)).map_err(wrong)
        };
        let reusable = match location.origin == self.origin {
            true => self.kept.take(),
            false => None,
        };
        if let Some(mut link) = reusable
            && link.sender.ready().await.is_ok()
            // It may have been closed meanwhile; then another one is opened.
            && let Ok(response) = link.sender.send_request(request()?).await
        {
            return Ok(Answer::new(&location.origin, response, link));
        }
        let mut link = self.registry.way.connect(&location.origin).await?;
        let response = link.sender.send_request(request()?).await;
        let response = response.map_err(|source| FetchError::Http {
            host: location.origin.authority(),
            source,
        })?;
        Ok(Answer::new(&location.origin, response, link))
    }

    /// What to show to a registry that wants to know who we are.
    async fn authorize(
        &mut self,
        challenge: Option<Challenge>,
        what: &str,
    ) -> Result<HeaderValue, FetchError> {
        let host = self.origin.authority();
        let proof = self.credential.map(|credential| &credential.proof);
        match (challenge, proof) {
            (Some(Challenge::Basic), Some(Proof::Password { user, password })) => {
                basic((user, password), &host)
            }
            (Some(Challenge::Basic), Some(Proof::Identity(_)) | None) => Err(FetchError::Denied {
                host,
                what: self.named(what),
                status: StatusCode::UNAUTHORIZED.as_u16(),
            }),
            (Some(Challenge::Bearer { realm, service }), _) => {
                self.token(&realm, service.as_deref(), what).await
            }
            (None, _) => Err(FetchError::Answer {
                host,
                why: "it asks who we are in a way that is not understood",
            }),
        }
    }

    async fn token(
        &mut self,
        realm: &str,
        service: Option<&str>,
        what: &str,
    ) -> Result<HeaderValue, FetchError> {
        let wrong = |why| FetchError::Answer {
            host: self.origin.authority(),
            why,
        };
        let mut location = Location::read(realm, &self.origin)
            .ok_or_else(|| wrong("its tokens are given out nowhere"))?;
        let clear = self.origin.scheme == Scheme::Http && location.origin.host == self.origin.host;
        if location.origin.scheme == Scheme::Http && !clear {
            return Err(wrong("its tokens are given out at an address without TLS"));
        }
        let repository = self.reference.repository();
        let proof = match self.credential {
            Some(credential) if self.is_realm(credential, &location.origin) => {
                Some(&credential.proof)
            }
            Some(_) => {
                self.unknown_realm = Some(location.origin.authority());
                None
            }
            None => None,
        };
        let (mut authorization, mut form) = (None, None);
        match proof {
            Some(Proof::Password { user, password }) => {
                authorization = Some(basic((user, password), &location.origin.authority())?);
            }
            Some(Proof::Identity(token)) => form = Some(token_form(token, service, repository)),
            None => {}
        }
        if form.is_none() {
            location.path = token_path(&location.path, service, repository);
        }
        let asked = Asked {
            accept: "application/json",
            from: 0,
            form: form.as_ref(),
        };
        let answer = self.send(&location, asked, authorization).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refusal(&answer, what));
        }
        let host = answer.host();
        let token = Zeroizing::new(self.read(answer, SMALL).await?);
        bearer(&token).ok_or(FetchError::Answer {
            host,
            why: "it gives out no token",
        })
    }

    /// Whether a realm may learn a credential: it is the registry's own host,
    /// or the one that goes with the credential.
    fn is_realm(&self, credential: &Credential, realm: &Origin) -> bool {
        let known = match self.reference.registry() {
            "docker.io" => Some("auth.docker.io"),
            _ => credential.realm.as_deref(),
        };
        realm.host == self.origin.host || known.is_some_and(|known| *known == realm.authority())
    }

    fn refusal(&self, answer: &Answer, what: &str) -> FetchError {
        let (host, status) = (answer.host(), answer.status);
        let what = self.named(what);
        match status {
            StatusCode::NOT_FOUND => FetchError::NotFound { host, what },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => match &self.unknown_realm {
                Some(realm) => FetchError::Realm {
                    host: self.origin.authority(),
                    realm: realm.clone(),
                },
                None => FetchError::Denied {
                    host,
                    what,
                    status: status.as_u16(),
                },
            },
            _ if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
                FetchError::Busy {
                    host,
                    status: status.as_u16(),
                    retry_after: retry_after(&answer.headers),
                }
            }
            _ => FetchError::Answer {
                host,
                why: "its status is none that is expected",
            },
        }
    }

    /// What was asked for, as people write it.
    fn named(&self, what: &str) -> String {
        let what = what.strip_prefix("manifests/").unwrap_or(what);
        let mark = if what.contains(':') { '@' } else { ':' };
        let what = what.strip_prefix("blobs/").unwrap_or(what);
        format!("{}{mark}{what}", self.reference.repository())
    }
}

impl Answer {
    fn new(origin: &Origin, response: Response<Incoming>, link: Link) -> Self {
        let (head, body) = response.into_parts();
        Self {
            origin: origin.clone(),
            status: head.status,
            headers: head.headers,
            body,
            link,
        }
    }

    pub(super) fn host(&self) -> String {
        self.origin.authority()
    }

    /// Which byte of the whole comes first.
    pub(super) fn begins(&self) -> Result<u64, FetchError> {
        if self.status != StatusCode::PARTIAL_CONTENT {
            return Ok(0);
        }
        let range = self.headers.get(header::CONTENT_RANGE);
        let range = range.and_then(|value| value.to_str().ok());
        let first = range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-'));
        let first = first.and_then(|(first, _)| first.parse().ok());
        first.ok_or_else(|| FetchError::Answer {
            host: self.host(),
            why: "it sends a part without saying which",
        })
    }

    /// How long the body is going to be, if it says so.
    pub(super) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The next piece of the body.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => return Ok(Some(piece)),
                    // Trailers say nothing that we need.
                    Err(_) => continue,
                },
                Some(Err(source)) => {
                    let host = self.host();
                    return Err(FetchError::Http { host, source });
                }
            }
        }
    }

    pub(super) fn media_type(&self) -> Result<String, FetchError> {
        let value = self.headers.get(header::CONTENT_TYPE);
        let value = value.and_then(|value| value.to_str().ok());
        value.map(str::to_owned).ok_or_else(|| FetchError::Answer {
            host: self.host(),
            why: "it does not say what it sent",
        })
    }

    /// Whether the body is announced as what was expected.
    pub(super) fn is(&self, expected: &str) -> Result<(), FetchError> {
        let media_type = self.media_type()?;
        match media_type.split(';').next().map(str::trim) == Some(expected) {
            true => Ok(()),
            false => Err(FetchError::Answer {
                host: self.host(),
                why: "a document has another media type than the index says",
            }),
        }
    }

    /// The digest that the registry announces, if it does.
    pub(super) fn digest(&self) -> Result<Option<Digest>, FetchError> {
        let Some(value) = self.headers.get("docker-content-digest") else {
            return Ok(None);
        };
        let text = value
            .to_str()
            .ok()
            .and_then(|text| text.strip_prefix("sha256:"));
        match text.and_then(|hex| hex.parse().ok()) {
            Some(digest) => Ok(Some(digest)),
            None => Err(FetchError::Answer {
                host: self.host(),
                why: "it announces a digest that is not SHA-256",
            }),
        }
    }
}

fn basic((user, password): (&str, &SecretString), host: &str) -> Result<HeaderValue, FetchError> {
    let pair = format!("{user}:{}", password.expose());
    let pair = Zeroizing::new(pair);
    let value = Zeroizing::new(format!(
        "Basic {}",
        *Zeroizing::new(STANDARD.encode(&*pair))
    ));
    let mut value = HeaderValue::from_str(&value).map_err(|_| FetchError::Answer {
        host: host.to_owned(),
        why: "no header can carry the credential for it",
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let moment = httpdate::parse_http_date(text).ok()?;
            moment.duration_since(SystemTime::now()).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_WAIT))
}
