mod sizes;

use api::node_migration::NodeMigrationSpec;
use engine::reason::Reason;
use serde_json::json;

use super::*;
use crate::fake_api::{FakeApi, MIGRATION};
use crate::unused_fields::SpecField;

/// A kind with nothing to plan, whose saved state cannot be written at first.
struct Unsaved(std::cell::Cell<bool>);

impl Kind for Unsaved {
    type Facts = ();
    type Settings = ();

    async fn adopt(&self, _: &Context, _: &Cache, _: &Migration) -> Result<(), PassError> {
        Ok(())
    }

    async fn observe(
        &self,
        _: &Context,
        _: &Cache,
        _: &mut Memory,
        _: &Migration,
        _: &[Arc<NodeMigration>],
    ) -> Result<(), PassError> {
        Ok(())
    }

    fn silent(&self, (): &()) -> Vec<String> {
        Vec::new()
    }

    fn check(&self, _: &Migration, (): &()) -> (Option<()>, Vec<Check>) {
        (Some(()), Vec::new())
    }

    fn uses(&self, _: SpecField) -> bool {
        false
    }

    fn document(&self, (): &(), (): &(), _: &str) -> Document {
        Document::default()
    }

    fn write_orders(&self, (): &(), _: &mut NodeMigrationSpec) {}

    fn save_settings(&self, (): (), (): &(), _: &mut MigrationStatus) {}

    async fn saved_state(
        &self,
        context: &Context,
        _: &Cache,
        _: &Migration,
        (): &(),
    ) -> Result<BTreeMap<String, String>, PassError> {
        if self.0.replace(false) {
            context
                .obstacles
                .hold("NodeMigration a", "NodeMigration a: denied".to_owned());
        }
        Ok(BTreeMap::new())
    }

    async fn advance(
        &self,
        _: &Context,
        _: &Cache,
        _: &mut Memory,
        _: &Migration,
        _: &mut MigrationStatus,
    ) -> Result<Vec<Reason>, PassError> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn nothing_starts_before_the_state_of_every_node_is_saved() {
    let api = FakeApi::default();
    let spec = json!({ "flannelToCalico": {}, "desired": "Run" });
    api.put_migration(&spec, &MigrationStatus::default());
    let migration: Migration = serde_json::from_value(api.get(MIGRATION).unwrap()).unwrap();
    let (context, cache, kind) = (api.context(), api.cache(), Unsaved(true.into()));
    let mut status = MigrationStatus::default();
    for is_started in [false, true] {
        context.obstacles.begin_pass();
        let mut memory = Memory::default();
        plan(&kind, &context, &cache, &mut memory, &migration, &mut status)
            .await
            .unwrap();
        assert_eq!(status.started_at.is_some(), is_started, "{status:?}");
        let (phase, blocked) = if is_started {
            (MigrationPhase::Preparing, "")
        } else {
            (MigrationPhase::Planning, "RequestRefused")
        };
        assert_eq!((status.phase, status.reason.as_str()), (phase, blocked));
    }
}

#[test]
fn a_large_cluster_is_read_less_often_except_while_waiting_for_agents() {
    let seconds = |phase, took| recheck(phase, Duration::from_millis(took)).as_secs();
    assert_eq!(seconds(MigrationPhase::Planned, 5), 2);
    assert_eq!(seconds(MigrationPhase::Refused, 900), 18);
    assert_eq!(seconds(MigrationPhase::Planned, 60_000), 60);
    assert_eq!(seconds(MigrationPhase::Planning, 60_000), 2);
}
