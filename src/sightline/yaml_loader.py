"""The YAML of configs: plain values only, with numbers as Python writes them."""

import re
from collections import Counter
from typing import Any

import yaml

from .errors import check


class ConfigLoader(yaml.SafeLoader):
    """Reads 1e-4 as a number and dates as text, and refuses aliases, tags and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias, tag = self.check_event(yaml.AliasEvent), getattr(self.peek_event(), "tag", None)
        check(not is_alias, "a config must hold no YAML aliases, got one; repeat the value")
        check(tag is None, f"a config must hold no YAML tags, got {tag!r:.100}; write the value alone")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        for key, count in Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)).items():
            check(count == 1, f"a section must hold each key once, got {key!r} {count} times")
        return super().construct_mapping(node, deep)


_REPLACED_TAGS = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
ConfigLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.inf|\.nan)$"),
    list("-+0123456789."),
)
