//! Requests for foreign objects. Answers are read leniently: one malformed object does not prevent reading the others.

use std::fmt::Debug;

use futures::AsyncReadExt;
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams};
use kube::core::{ObjectList, PartialObjectMeta, Request};
use kube::{Api, Error, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::lenient::Lenient;

/// Objects requested in one page, unless they are large.
pub const PAGE: u32 = 250;
/// Most bytes read of a page: a larger page is requested again with fewer objects. An object may have 1.5 MiB in etcd, and more
/// as text.
const PAGE_BYTES: usize = 8 << 20;
/// Most restarts of a list: the API server keeps a list for some minutes.
const RESTARTS: u32 = 3;

/// The object of this name; `None` where there is none.
///
/// # Errors
/// Errors of the API server.
pub async fn get_opt<K: Resource + Clone + DeserializeOwned>(
    api: &Api<K>,
    name: &str,
) -> Result<Option<K>, Error> {
    let request = Request::new(api.resource_url()).get(name, &GetParams::default());
    found(ask(api, "get", request).await)
}

/// Patches the object of this name; returns the patched object.
///
/// # Errors
/// Errors of the API server.
pub async fn patch<K: Resource + Clone + DeserializeOwned>(
    api: &Api<K>,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<impl Serialize + Debug>,
) -> Result<K, Error> {
    let request = Request::new(api.resource_url()).patch(name, parameters, patch);
    ask(api, "patch", request).await
}

/// Patches the status of the object of this name.
///
/// # Errors
/// Errors of the API server.
pub async fn patch_status<K: Resource + Clone + DeserializeOwned>(
    api: &Api<K>,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<impl Serialize + Debug>,
) -> Result<K, Error> {
    let request = Request::new(api.resource_url()).patch_subresource("status", name, parameters, patch);
    ask(api, "patch_status", request).await
}

/// Deletes the object of this name. The object in the answer is ignored.
///
/// # Errors
/// Errors of the API server.
pub async fn delete<K>(api: &Api<K>, name: &str, parameters: &DeleteParams) -> Result<(), Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    match api.delete(name, parameters).await {
        Ok(_) | Err(Error::SerdeError(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The metadata of the object of this name; `None` where there is none.
///
/// # Errors
/// Errors of the API server.
pub async fn get_metadata_opt<K: Resource + Clone>(
    api: &Api<K>,
    name: &str,
) -> Result<Option<PartialObjectMeta<K>>, Error> {
    let request = Request::new(api.resource_url()).get_metadata(name, &GetParams::default());
    found(ask(api, "get_metadata", request).await)
}

/// Patches the object of this name; returns its metadata after the patch.
///
/// # Errors
/// Errors of the API server.
pub async fn patch_metadata<K: Resource + Clone>(
    api: &Api<K>,
    name: &str,
    parameters: &PatchParams,
    patch: &Patch<impl Serialize + Debug>,
) -> Result<PartialObjectMeta<K>, Error> {
    let request = Request::new(api.resource_url()).patch_metadata(name, parameters, patch);
    ask(api, "patch_metadata", request).await
}

fn found<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn ask<K: Resource + Clone, T: DeserializeOwned>(
    api: &Api<K>,
    verb: &'static str,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<T, Error> {
    let mut request = request.map_err(Error::BuildRequest)?;
    request.extensions_mut().insert(verb);
    let object = request.uri().path().to_owned();
    let read: Lenient<T> = api.clone().into_client().request(request).await?;
    if let Some(words) = read.words() {
        warn!(
            object,
            "object not fully readable; only decisions about it are affected: {words}"
        );
    }
    Ok(read.object)
}

/// Collects what `choose` returns for each object, page by page: one page is in memory at a time, and a small one where objects
/// are large. A list whose continue token has expired is restarted, at most [`RESTARTS`] times: in one page it could exceed the
/// memory limit.
///
/// # Errors
/// Errors of the API server.
pub async fn pages<K, T>(
    api: &Api<K>,
    asked: ListParams,
    mut choose: impl FnMut(K) -> Option<T>,
) -> Result<Vec<T>, Error>
where
    K: Resource + Clone + DeserializeOwned,
{
    lenient_pages(api, asked, |read| choose(read.object)).await
}

/// The same with the unreadable fields of each object. A list that is restarted has objects twice: `choose` gets them again. The
/// first page has at most `asked.limit` objects.
///
/// # Errors
/// Errors of the API server.
pub async fn lenient_pages<K, T>(
    api: &Api<K>,
    asked: ListParams,
    mut choose: impl FnMut(Lenient<K>) -> Option<T>,
) -> Result<Vec<T>, Error>
where
    K: Resource + Clone + DeserializeOwned,
{
    let first = asked.limit.map_or(PAGE, |limit| limit.clamp(1, PAGE));
    let mut page = asked.limit(first);
    let mut found = Vec::new();
    let mut unclear = Unclear::default();
    let mut again = 0;
    loop {
        let (list, bytes) = match list(api, &page).await {
            Err(Error::Api(status))
                if status.code == 410 && page.continue_token.is_some() && again < RESTARTS =>
            {
                again += 1;
                found.clear();
                unclear = Unclear::default();
                page.continue_token = None;
                continue;
            }
            Ok(None) => {
                page.limit = page.limit.map(|limit| (limit / 4).max(1));
                continue;
            }
            Ok(Some(list)) => list,
            Err(error) => return Err(error),
        };
        page.limit = page.limit.map(|limit| {
            if bytes < PAGE_BYTES / 4 {
                (limit * 2).min(PAGE)
            } else {
                limit
            }
        });
        for read in list.items {
            unclear.note(&read);
            found.extend(choose(read));
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    unclear.tell(api.resource_url());
    Ok(found)
}

/// A page and its size in bytes; `None` if it is too large.
async fn list<K: Resource + Clone + DeserializeOwned>(
    api: &Api<K>,
    asked: &ListParams,
) -> Result<Option<(ObjectList<Lenient<K>>, usize)>, Error> {
    let request = Request::new(api.resource_url()).list(asked);
    let mut request = request.map_err(Error::BuildRequest)?;
    request.extensions_mut().insert("list");
    let body = api.clone().into_client().request_stream(request).await?;
    // A single object is read at any size, and a list without pages, too.
    let most = match asked.limit {
        Some(2..) => PAGE_BYTES,
        Some(_) | None => usize::MAX,
    };
    let mut text = Vec::new();
    let mut body = std::pin::pin!(body.take(u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1)));
    body.read_to_end(&mut text).await.map_err(Error::ReadEvents)?;
    if text.len() > most {
        return Ok(None);
    }
    let list = serde_json::from_slice(&text).map_err(Error::SerdeError)?;
    Ok(Some((list, text.len())))
}

/// Objects of a list that are not fully readable.
#[derive(Default)]
struct Unclear {
    count: usize,
    first: Option<String>,
}

impl Unclear {
    fn note<K: Resource>(&mut self, read: &Lenient<K>) {
        let Some(words) = read.words() else { return };
        self.count += 1;
        self.first.get_or_insert_with(|| {
            let namespace = read.namespace().unwrap_or_default();
            format!("{namespace}/{}: {words}", read.name_any())
        });
    }

    fn tell(&self, list: &str) {
        if let Some(first) = &self.first {
            warn!(
                list,
                count = self.count,
                first,
                "objects not fully readable; only decisions about them are affected"
            );
        }
    }
}
