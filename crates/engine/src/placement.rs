//! Which session a request goes on with: the resident one, one that is kept elsewhere, or a new one.
//!
//! A name decides. Without one the session decides that the prompt has most in common with: it goes on
//! where the prompt extends it, or takes the place of its last turn. Anything else is a conversation of its
//! own, which begins with a copy of what it has in common with another. A session that would lose something
//! by that is to be parked first.

use crate::chat::ChatRequest;
use crate::engine::{Engine, Resident};
use crate::error::EngineError;
use crate::session::Head;
use crate::snapshot::Manifest;

/// Less than so many tokens in common are no reason to bring a session in: reading them is sooner done.
const LEAST_IN_COMMON: u32 = 16;

/// What a session is called.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SessionId {
    /// The name that the caller gave, or an id that nobody else has.
    pub id: String,
    /// Whether a caller gave it.
    pub is_named: bool,
}

/// A session that is kept elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    session: SessionId,
    head: Head,
}

/// Where a request runs, and what is to be done before.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Placement {
    /// The session that will be resident.
    #[serde(flatten)]
    pub session: SessionId,
    /// Whether the resident session is to be parked first, since it would lose something.
    pub park: bool,
    /// The session to restore first.
    pub bring: Option<String>,
}

impl Engine {
    /// Makes a session that is kept elsewhere one that requests may go on with.
    ///
    /// # Errors
    /// Its manifest is damaged, or it does not fit the resident model.
    pub fn know(&mut self, session: SessionId, manifest: &Manifest) -> Result<(), EngineError> {
        let head = manifest.checked(self.loaded()?)?;
        let known = &mut self.resident_mut()?.known;
        known.retain(|other| other.session.id != session.id);
        known.push(Known { session, head });
        Ok(())
    }

    /// Forgets what [`Engine::know`] was told.
    pub fn forget(&mut self, id: &str) {
        if let Ok(resident) = self.resident_mut() {
            resident.known.retain(|known| known.session.id != id);
        }
    }

    /// The resident session's name, if it has been given one.
    pub fn session_id(&self) -> Option<&SessionId> {
        self.resident().ok()?.session_id.as_ref()
    }

    /// Names the resident session.
    pub fn name_session(&mut self, session: Option<SessionId>) -> Result<(), EngineError> {
        self.resident_mut()?.session_id = session;
        Ok(())
    }

    /// Decides where a request runs; `fresh` is the id of a session without a name, should one be needed.
    pub fn place(&self, request: &ChatRequest, fresh: &str) -> Result<Placement, EngineError> {
        let Resident { loaded, session, session_id, known, .. } = self.resident()?;
        let head = session.head();
        let is_kept = !head.ids.is_empty() && session.is_sound();
        let new = SessionId {
            id: request.session.clone().unwrap_or_else(|| fresh.to_owned()),
            is_named: request.session.is_some(),
        };
        if is_kept && session_id.as_ref().is_some_and(|id| id.id == new.id) {
            return Ok(Placement { session: new, park: false, bring: None });
        }
        // One that no name was given to cannot be found again.
        let park = is_kept && session_id.as_ref().is_some_and(|id| id.id != new.id);
        if let Some(Known { session, .. }) = known.iter().find(|known| known.session.id == new.id) {
            return Ok(Placement { bring: Some(session.id.clone()), session: new, park });
        }
        let resident = session_id.as_ref().filter(|_| is_kept).map(|id| (id, head, true));
        let others = known.iter().map(|known| (&known.session, &known.head, false));
        let rendered = self.prompt_ids(request, None)?.ids;
        let mut best: Option<Candidate<'_>> = None;
        for (id, head, is_resident) in resident.into_iter().chain(others) {
            let ids: Vec<u32> = head.ids.iter().chain(&head.pending).copied().collect();
            // Rendering takes long, and only a session with a turn of the conversation renders it otherwise.
            let common = if self.knows_a_turn(request, &head.turns)? {
                head.common(&self.prompt_ids(request, Some((&head.turns, &ids)))?.ids)
            } else {
                head.common(&rendered)
            };
            let (reach, _) = head.reach(loaded.model.kept(), common);
            let goes_on = common > 0 && (common >= head.ids.len() as u32 || common >= head.last_turn);
            let is_same = goes_on && !id.is_named && !new.is_named;
            let candidate = Candidate { is_same, reach, id, is_resident };
            let is_of_use = is_same || reach >= LEAST_IN_COMMON;
            if is_of_use && best.as_ref().is_none_or(|best| candidate.rank() > best.rank()) {
                best = Some(candidate);
            }
        }
        Ok(match best {
            None => Placement { session: new, park, bring: None },
            Some(Candidate { is_same, reach, id, is_resident }) => Placement {
                session: if is_same { id.clone() } else { new },
                park: park && !(is_resident && is_same),
                bring: (!is_resident && reach >= LEAST_IN_COMMON).then(|| id.id.clone()),
            },
        })
    }
}

/// A session that a request may go on with.
struct Candidate<'s> {
    /// Whether the request is its next turn, or takes the place of its last one.
    is_same: bool,
    /// Tokens that need not be read again.
    reach: u32,
    id: &'s SessionId,
    is_resident: bool,
}

impl Candidate<'_> {
    /// The greater, the better.
    fn rank(&self) -> (bool, u32, bool) {
        (self.is_same, self.reach, self.is_resident)
    }
}
