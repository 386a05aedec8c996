"""What the `dynamo` section answers besides its values: namespaces in use, pools of either form."""

from app.config_dynamo import DynamoSettings


def test_namespaces_are_those_of_the_source_in_use() -> None:
    discovery = {"etcd": {"namespaces": ["b", "a"]}, "file": {"namespace": "f"}}
    assert DynamoSettings.model_validate({"discovery": discovery}).discovery.namespaces == ("b", "a")
    from_file = DynamoSettings.model_validate({"discovery": {**discovery, "source": "file"}})
    assert from_file.discovery.namespaces == ("f",) and not from_file.discovery.namespaces_listed
    pods = {"source": "kubernetes", "kubernetes": {"dynamo_namespace": "k"}}
    assert DynamoSettings.model_validate({"discovery": pods}).discovery.namespaces == ("k",)


def test_plain_list_of_shim_backends_is_the_pool_of_the_one_namespace() -> None:
    section = DynamoSettings.model_validate({"shim": {"backends": ["x", "y"]}})
    assert section.shim_pools == (("dynamo", ("x", "y")),)
    pools = [{"namespace": "p", "backends": ["x"]}, {"namespace": "q", "backends": ["y"]}]
    both = {"shim": {"pools": pools}, "discovery": {"etcd": {"namespaces": ["p", "q"]}}}
    assert DynamoSettings.model_validate(both).shim_pools == (("p", ("x",)), ("q", ("y",)))
    assert DynamoSettings().shim_pools == ()
