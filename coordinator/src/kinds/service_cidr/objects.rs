//! Services, their endpoints and their addresses, read and written as they are stored.

use engine::cluster::Malformed;
use engine::field_patch::FieldPatch;
use ipnet::IpNet;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use service_cidr::objects::basis;
use service_cidr::outline::outline;
use service_cidr::ranges::ServiceCidr;

use crate::lenient_requests;
use crate::read_error::ReadError;
use crate::write::{WriteError, parameters, patch_fields, patch_status_fields, post_parameters};

/// The API group of `ServiceCIDR`s and `IPAddress`es.
const GROUP: &str = "networking.k8s.io";
/// The resource name of `ServiceCIDR`s.
const RANGES: &str = "servicecidrs";
/// Versions of the group with `ServiceCIDR`s in this form, the newest first.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// A dynamic type keeps every field: types of this version would lose unknown fields.
fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn service_kind() -> ApiResource {
    kind("", "v1", "Service", "services")
}

fn slice_kind() -> ApiResource {
    kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
}

fn range_kind(version: &str) -> ApiResource {
    kind(GROUP, version, "ServiceCIDR", RANGES)
}

fn services(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &service_kind())
}

fn slices(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &slice_kind())
}

/// An object as it is stored. Objects of the API server always serialize.
fn stored(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

fn parsed(object: &Value, attempt: &str, what: &str) -> Result<DynamicObject, WriteError> {
    serde_json::from_value(object.clone())
        .map_err(|source| WriteError::of(attempt, what, kube::Error::SerdeError(source)))
}

/// The outline of every Service. One page of whole Services is in memory at a time.
pub async fn all_services(client: &Client) -> Result<Vec<Value>, ReadError> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &service_kind());
    let list = lenient_requests::pages(&api, ListParams::default(), |object| {
        Some(outline(&stored(&object)))
    })
    .await;
    list.map_err(|source| ReadError::of("listing", "Services", source))
}

/// A Service by its name; `None` when it does not exist.
pub async fn get_service(client: &Client, namespace: &str, name: &str) -> Result<Option<Value>, ReadError> {
    get(
        services(client, namespace),
        &format!("Service {namespace}/{name}"),
        name,
    )
    .await
}

/// An `EndpointSlice` by its name; `None` when it does not exist.
pub async fn get_slice(client: &Client, namespace: &str, name: &str) -> Result<Option<Value>, ReadError> {
    get(
        slices(client, namespace),
        &format!("EndpointSlice {namespace}/{name}"),
        name,
    )
    .await
}

async fn get(api: Api<DynamicObject>, what: &str, name: &str) -> Result<Option<Value>, ReadError> {
    let found = lenient_requests::get_opt(&api, name).await;
    let found = found.map_err(|source| ReadError::of("reading", what, source))?;
    Ok(found.as_ref().map(stored))
}

/// Major and minor version of the API server that answers; `None` if it does not say a version. Some providers append letters to
/// the minor version.
///
/// # Errors
///
/// The API server refuses the read, does not answer, or sends an answer that cannot be read.
pub async fn server_version(client: &Client) -> Result<Option<(u32, u32)>, ReadError> {
    let info = match client.apiserver_version().await {
        Ok(info) => info,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        Err(source) => return Err(ReadError::of("reading", "the version of the API server", source)),
    };
    let minor: String = info.minor.chars().take_while(char::is_ascii_digit).collect();
    Ok(info.major.parse().ok().zip(minor.parse().ok()))
}

/// The newest version of the API that has `ServiceCIDR`s; `None` when none is served.
pub async fn api_version(client: &Client) -> Result<Option<String>, ReadError> {
    for version in VERSIONS {
        let name = format!("{GROUP}/{version}");
        match client.list_api_group_resources(&name).await {
            Ok(list) if list.resources.iter().any(|resource| resource.name == RANGES) => {
                return Ok(Some(version.to_owned()));
            }
            Ok(_) => {}
            // For an unknown group the API server answers in plain text, without the reason NotFound.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(source) => return Err(ReadError::of("listing", name, source)),
        }
    }
    Ok(None)
}

/// Every `ServiceCIDR`, or the first malformed one.
pub async fn all_ranges(
    client: &Client,
    version: &str,
) -> Result<Result<Vec<ServiceCidr>, Malformed>, ReadError> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &range_kind(version));
    let ranges = lenient_requests::pages(&api, ListParams::default(), |object| {
        Some(range(&stored(&object)))
    })
    .await;
    let ranges = ranges.map_err(|source| ReadError::of("listing", "ServiceCIDRs", source))?;
    Ok(ranges.into_iter().collect())
}

fn range(object: &Value) -> Result<ServiceCidr, Malformed> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let ranges = serde_json::from_value(object["spec"]["cidrs"].clone()).map_err(|error| Malformed {
        object: format!("ServiceCIDR {name}"),
        problem: format!("spec.cidrs {}: {error}", object["spec"]["cidrs"]),
    })?;
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    Ok(ServiceCidr {
        name: name.to_owned(),
        ranges,
        ready: ready.any(|condition| condition["status"] == "True"),
        terminating: object["metadata"]["deletionTimestamp"].is_string(),
    })
}

/// Creates a `ServiceCIDR`; an existing one is read again by the next pass.
pub async fn create_range(
    client: &Client,
    version: &str,
    name: &str,
    ranges: &[IpNet],
) -> Result<(), WriteError> {
    let what = format!("ServiceCIDR {name}");
    let object = json!({
        "apiVersion": format!("{GROUP}/{version}"),
        "kind": "ServiceCIDR",
        "metadata": { "name": name, "labels": { "app.kubernetes.io/managed-by": "replumb" } },
        "spec": { "cidrs": ranges },
    });
    let object = parsed(&object, "creating", &what)?;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &range_kind(version));
    match api.create(&post_parameters(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(source) => Err(WriteError::of("creating", what, source)),
    }
}

/// Deletes a `ServiceCIDR`: it disappears once no address needs it. A missing one counts as deleted.
pub async fn delete_range(client: &Client, version: &str, name: &str) -> Result<(), WriteError> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &range_kind(version));
    match lenient_requests::delete(&api, name, &DeleteParams::default()).await {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(WriteError::of("deleting", format!("ServiceCIDR {name}"), source)),
    }
}

/// Creates a Service; returns it as it is stored.
pub async fn create_service(client: &Client, namespace: &str, object: &Value) -> Result<Value, WriteError> {
    let what = format!(
        "Service {namespace}/{}",
        object["metadata"]["name"].as_str().unwrap_or_default()
    );
    let object = parsed(object, "creating", &what)?;
    let made = services(client, namespace)
        .create(&post_parameters(), &object)
        .await
        .map_err(|source| WriteError::of("creating", what, source))?;
    Ok(stored(&made))
}

/// Tries by a dry run whether a Service can be created.
pub async fn try_create_service(client: &Client, object: &Value) -> Result<(), WriteError> {
    let (namespace, name) = place(object);
    let what = format!("Service {namespace}/{name}");
    let object = parsed(object, "creating (dry run)", &what)?;
    let parameters = PostParams {
        dry_run: true,
        ..post_parameters()
    };
    let made = services(client, namespace).create(&parameters, &object).await;
    made.map_err(|source| WriteError::of("creating (dry run)", what, source))?;
    Ok(())
}

/// Tries by a dry run whether a Service can be patched.
pub async fn try_patch_service(client: &Client, read: &Value, change: &Value) -> Result<(), WriteError> {
    let (namespace, name) = place(read);
    let parameters = PatchParams {
        dry_run: true,
        ..parameters()
    };
    let api = services(client, namespace);
    let patched = lenient_requests::patch(&api, name, &parameters, &Patch::Merge(change)).await;
    patched.map_err(|source| {
        WriteError::of(
            "patching (dry run)",
            format!("Service {namespace}/{name}"),
            source,
        )
    })?;
    Ok(())
}

/// Patches a Service, if the fields on which the patch depends are as in `read`; returns it as it is stored then.
pub async fn patch_service(client: &Client, read: &Value, patch: &FieldPatch) -> Result<Value, WriteError> {
    let (namespace, name) = place(read);
    let object = format!("Service {namespace}/{name}");
    let patched = patch_fields(&services(client, namespace), name, ("patching", &object), patch).await?;
    Ok(stored(&patched))
}

/// Merge-patches the status of a Service, if the basis of its spec is as it was read; returns it as it is stored then.
pub async fn patch_service_status(
    client: &Client,
    read: &Value,
    change: &Value,
) -> Result<Value, WriteError> {
    let (namespace, name) = place(read);
    let patch = FieldPatch::new(read, &basis(read), change);
    let object = format!("status of Service {namespace}/{name}");
    let api = services(client, namespace);
    let patched = patch_status_fields(&api, name, ("patching", &object), &patch).await?;
    Ok(stored(&patched))
}

/// Namespace and name of an object.
fn place(object: &Value) -> (&str, &str) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    (text("namespace"), text("name"))
}

/// Number of attempts to delete a Service that is edited between its read and its deletion.
const DELETIONS: usize = 5;

/// Deletes this very Service, if its basis is as it was read; a missing one counts as deleted.
pub async fn delete_service(client: &Client, read: &Value) -> Result<(), WriteError> {
    let (namespace, name) = place(read);
    let api = services(client, namespace);
    let object = format!("Service {namespace}/{name}");
    let is_the_same = FieldPatch::new(read, &basis(read), &json!({}));
    let mut version = read["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    for _ in 0..DELETIONS {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: read["metadata"]["uid"].as_str().map(str::to_owned),
                resource_version: version,
            }),
            ..DeleteParams::default()
        };
        match lenient_requests::delete(&api, name, &parameters).await {
            Ok(()) => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(source) => return Err(WriteError::of("deleting", object, source)),
        }
        let Some(now) = get_service(client, namespace, name).await? else {
            return Ok(());
        };
        if !is_the_same.holds(&now) {
            break;
        }
        version = now["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    }
    Err(WriteError::Conflict {
        attempt: "deleting".to_owned(),
        object,
    })
}

/// Writes a slice of replumb: creates it, or replaces it.
pub async fn write_slice(client: &Client, object: &Value) -> Result<(), WriteError> {
    let (namespace, name) = place(object);
    let what = format!("EndpointSlice {namespace}/{name}");
    let api = slices(client, namespace);
    let found = lenient_requests::get_opt(&api, name)
        .await
        .map_err(|source| ReadError::of("reading", &what, source))?;
    let mut object = parsed(object, "writing", &what)?;
    match found {
        None => api
            .create(&post_parameters(), &object)
            .await
            .map_err(|source| WriteError::of("creating", &what, source))?,
        Some(found) => {
            object.metadata.resource_version = found.resource_version();
            api.replace(name, &post_parameters(), &object)
                .await
                .map_err(|source| WriteError::of("replacing", &what, source))?
        }
    };
    Ok(())
}

/// Deletes a slice of replumb; a missing one counts as deleted.
pub async fn delete_slice(client: &Client, namespace: &str, name: &str) -> Result<(), WriteError> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    match lenient_requests::delete(&api, name, &DeleteParams::default()).await {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(WriteError::of(
            "deleting",
            format!("EndpointSlice {namespace}/{name}"),
            source,
        )),
    }
}
