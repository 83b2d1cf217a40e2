"""Trainings of PyTorch Geometric on graphs: links, heterogeneous graphs, clusters, knowledge graphs."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

NEEDS = ("torch_geometric",)
Adjacency = dict[str, dict[str, dict[str, dict[int, list[int]]]]]
"""The source nodes by target type, source type, relation and target."""
PAPERS = 20_000


def random_graph(num_nodes: int, num_edges: int) -> Tensor:
    """Return the edges of an undirected graph in which a few nodes have many neighbours."""
    generator = np.random.default_rng(0)
    src = generator.integers(0, num_nodes, num_edges)
    dst = (num_nodes * generator.random(num_edges) ** 1.6).astype(np.int64)
    edge_index = torch.from_numpy(np.stack([src, dst]))
    return torch.cat([edge_index, edge_index.flip(0)], dim=1)


def distances_from(neighbours: list[list[int]], start: int, without: int) -> dict[int, int]:
    """Return how far the nodes are from a node, if another one is taken out."""
    distance, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        for other in neighbours[node]:  # here
            if other != without and other not in distance:  # here
                distance[other] = distance[node] + 1  # here
                queue.append(other)  # here
    return distance


def drnl_node_labeling(edge_index: Tensor, src: int, dst: int, num_nodes: int) -> Tensor:
    """Label nodes by their distances from both ends of the link."""
    neighbours: list[list[int]] = [[] for _ in range(num_nodes)]
    for a, b in edge_index.t().tolist():  # here
        neighbours[a].append(b)  # here
    dist2src = distances_from(neighbours, src, dst)  # here
    dist2dst = distances_from(neighbours, dst, src)  # here
    z = torch.zeros(num_nodes, dtype=torch.long)
    for node in range(num_nodes):
        if node in (src, dst):
            z[node] = 1
        elif node in dist2src and node in dist2dst:
            dist = dist2src[node] + dist2dst[node]
            nearer = min(dist2src[node], dist2dst[node])
            z[node] = 1 + nearer + dist // 2 * (dist // 2 + dist % 2 - 1)  # here
    return z.clamp(max=31)


def enclosing_subgraph(edge_index: Tensor, link: tuple[int, int], y: float, num_hops: int) -> Any:
    """Return the graph around a link, without the link."""
    from torch_geometric.data import Data
    from torch_geometric.utils import k_hop_subgraph

    sub_nodes, sub_edge_index, mapping, _ = k_hop_subgraph(  # here
        list(link), num_hops, edge_index, relabel_nodes=True
    )
    src, dst = mapping.tolist()
    mask1 = (sub_edge_index[0] != src) | (sub_edge_index[1] != dst)
    mask2 = (sub_edge_index[0] != dst) | (sub_edge_index[1] != src)
    sub_edge_index = sub_edge_index[:, mask1 & mask2]
    z = drnl_node_labeling(sub_edge_index, src, dst, sub_nodes.size(0))  # here
    return Data(x=F.one_hot(z, 32).float(), edge_index=sub_edge_index, y=torch.tensor([y]))


@labelled(
    gpu="data-bound",
    cpu="data-bound",
    needs=NEEDS,
    helpers=(enclosing_subgraph, drnl_node_labeling, distances_from),
)
def seal_dynamic_train(run: hoptui.Run, device: str) -> None:
    """In the manner of PyG's seal_link_pred.py, with the dynamic dataset of SEAL_OGB's `--dynamic_train`.

    The graph around each link is cut out and labelled when the loader asks for it. A known complaint
    (SEAL_OGB, issue 26) is the low use of the GPU.
    """
    from torch_geometric.data import Dataset
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import MLP, GCNConv, SortAggregation

    num_nodes = 40_000
    edge_index = random_graph(num_nodes, 100_000)

    class SEALDynamicDataset(Dataset):  # type: ignore[misc]
        def len(self) -> int:
            return 2 * edge_index.size(1)

        def get(self, idx: int) -> Any:
            if idx % 2:
                src, dst = edge_index[:, idx // 2].tolist()
                return enclosing_subgraph(edge_index, (src, dst), 1.0, num_hops=2)
            src, dst = random.sample(range(num_nodes), 2)
            return enclosing_subgraph(edge_index, (src, dst), 0.0, num_hops=2)

    class DGCNN(nn.Module):
        def __init__(self, hidden_channels: int, k: int = 20) -> None:
            super().__init__()
            self.convs = nn.ModuleList(
                [
                    GCNConv(32, hidden_channels),
                    GCNConv(hidden_channels, hidden_channels),
                    GCNConv(hidden_channels, 1),
                ]
            )
            self.pool = SortAggregation(k)
            self.mlp = MLP([k * (2 * hidden_channels + 1), 128, 1], dropout=0.5, norm=None)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
            xs = [x]
            for conv in self.convs:
                xs += [conv(xs[-1], edge_index).tanh()]
            return self.mlp(self.pool(torch.cat(xs[1:], dim=-1), batch))

    train_loader = DataLoader(SEALDynamicDataset(), batch_size=32, shuffle=True)
    model = DGCNN(hidden_channels=32).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.BCEWithLogitsLoss()
    while not run.stopping:
        for data in train_loader:
            data = data.to(device)
            optimizer.zero_grad()
            out = model(data.x, data.edge_index, data.batch)
            loss = criterion(out.view(-1), data.y)
            loss.backward()
            optimizer.step()
            run.log(loss=loss, samples=data.num_graphs)
            if run.stopping:
                break


def academic_graph() -> Adjacency:
    """Return papers with their authors, fields and venues, in both directions."""
    generator = random.Random(0)
    graph: Adjacency = defaultdict(lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list))))
    kinds = (
        ("author", "writes", 8_000, 3),
        ("field", "in", 400, 10),
        ("venue", "published", 60, 1),
        ("paper", "cites", PAPERS, 6),
    )
    for paper in range(PAPERS):
        for kind, relation, count, each in kinds:
            for _ in range(each):
                other = int(count * generator.random() ** 1.5)
                graph["paper"][kind][relation][paper].append(other)
                graph[kind]["paper"][f"rev_{relation}"][other].append(paper)
    return graph


def add_budget(
    te: dict[str, dict[str, dict[int, list[int]]]],
    target_id: int,
    layer_data: dict[str, dict[int, int]],
    budget: dict[str, dict[int, float]],
    sampled_number: int,
) -> None:
    """Add the neighbours of a sampled node to the budget."""
    for source_type in te:
        for adl in te[source_type].values():
            if target_id not in adl:
                continue
            sampled_ids = adl[target_id]
            if len(sampled_ids) > sampled_number:
                sampled_ids = np.random.choice(sampled_ids, sampled_number, replace=False).tolist()  # here
            for source_id in sampled_ids:  # here
                if source_id not in layer_data[source_type]:  # here
                    budget[source_type][source_id] += 1.0 / len(sampled_ids)  # here


def sample_subgraph(graph: Adjacency, inp: list[int], sampled_depth: int, sampled_number: int) -> Any:
    """Sample nodes of each type by their share of the budget, and look up the edges between them."""
    layer_data: dict[str, dict[int, int]] = defaultdict(dict)
    budget: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for target_id in inp:
        layer_data["paper"][target_id] = len(layer_data["paper"])
    for target_id in inp:
        add_budget(graph["paper"], target_id, layer_data, budget, sampled_number)  # here
    for _ in range(sampled_depth):
        for source_type in list(budget):
            keys = list(budget[source_type])
            score = np.array(list(budget[source_type].values())) ** 2
            if len(keys) > sampled_number:
                keys = np.random.choice(  # here
                    keys, sampled_number, replace=False, p=score / score.sum()
                ).tolist()
            for key in keys:
                layer_data[source_type][key] = len(layer_data[source_type])
            for key in keys:
                add_budget(graph[source_type], key, layer_data, budget, sampled_number)  # here
                budget[source_type].pop(key)
    edge_list: dict[tuple[str, str, str], list[list[int]]] = defaultdict(list)
    for target_type, te in graph.items():
        for source_type, tes in te.items():
            for relation_type, tesr in tes.items():
                edges = edge_list[source_type, relation_type, target_type]
                for target_key, target_ser in layer_data[target_type].items():
                    for source_key in tesr.get(target_key, ()):  # here
                        if source_key in layer_data[source_type]:  # here
                            source_ser = layer_data[source_type][source_key]  # here
                            edges.append([source_ser, target_ser])  # here
    return layer_data, edge_list


@labelled(gpu="data-bound", cpu="data-bound", needs=NEEDS, helpers=(sample_subgraph, add_budget))
def hgt_sampled_batches(run: hoptui.Run, device: str) -> None:
    """In the manner of pyHGT's train_paper_field.py: its sampler is dictionaries in Python.

    The model is PyG's HGTConv, as in its hgt_dblp.py.
    """
    from torch_geometric.data import HeteroData
    from torch_geometric.nn import HGTConv

    graph = academic_graph()
    features = {"paper": torch.randn(PAPERS, 32), "author": torch.randn(8_000, 32)}
    features |= {"field": torch.randn(400, 32), "venue": torch.randn(60, 32)}
    labels = torch.randint(16, (PAPERS,))
    edge_types = [
        (source_type, relation, target_type)
        for target_type, te in graph.items()
        for source_type, tes in te.items()
        for relation in tes
    ]

    class HGT(nn.Module):
        def __init__(self, hidden_channels: int, num_heads: int, num_layers: int) -> None:
            super().__init__()
            metadata = (list(features), edge_types)
            widths = [32] + [hidden_channels] * num_layers
            self.convs = nn.ModuleList(
                [HGTConv(a, hidden_channels, metadata, num_heads) for a in widths[:-1]]
            )
            self.lin = nn.Linear(hidden_channels, 16)

        def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> Any:
            for conv in self.convs:
                x_dict = conv(x_dict, edge_index_dict)
            return self.lin(x_dict["paper"])

    def prepare_data(seeds: list[int]) -> Any:
        layer_data, edge_list = sample_subgraph(graph, seeds, sampled_depth=6, sampled_number=64)  # here
        data = HeteroData()
        for kind, nodes in layer_data.items():
            data[kind].x = features[kind][list(nodes)]
        for edge_type in edge_types:
            edges = torch.tensor(edge_list.get(edge_type, []), dtype=torch.long)
            data[edge_type].edge_index = edges.view(-1, 2).t().contiguous()
        data["paper"].y = labels[seeds]
        return data

    model = HGT(hidden_channels=16, num_heads=1, num_layers=1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while not run.stopping:
        seeds = random.sample(range(PAPERS), 128)
        data = prepare_data(seeds).to(device)  # here
        out = model(data.x_dict, data.edge_index_dict)[: len(seeds)]
        loss = F.cross_entropy(out, data["paper"].y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        run.log(loss=loss, samples=len(seeds))


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS)
def gcn2_cora(run: hoptui.Run, device: str) -> None:
    """In the manner of PyG's gcn2_cora.py: 64 layers on a graph of the size of Cora."""
    from torch_geometric.nn import GCN2Conv

    x = torch.rand(2_708, 1_433, device=device)
    y = torch.randint(7, (2_708,), device=device)
    edge_index = random_graph(2_708, 5_278).to(device)
    train_mask = (torch.arange(2_708) < 140).to(device)

    class Net(nn.Module):
        def __init__(self, hidden_channels: int, num_layers: int, alpha: float, theta: float) -> None:
            super().__init__()
            self.lins = nn.ModuleList([nn.Linear(1_433, hidden_channels), nn.Linear(hidden_channels, 7)])
            self.convs = nn.ModuleList(
                [GCN2Conv(hidden_channels, alpha, theta, i + 1, cached=True) for i in range(num_layers)]
            )

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = F.dropout(x, 0.6, training=self.training)
            x = x_0 = self.lins[0](x).relu()
            for conv in self.convs:
                x = F.dropout(x, 0.6, training=self.training)
                x = conv(x, x_0, edge_index).relu()
            return F.log_softmax(self.lins[1](x), dim=-1)

    model = Net(hidden_channels=64, num_layers=64, alpha=0.1, theta=0.5).to(device)
    optimizer = torch.optim.Adam(
        [
            {"params": model.convs.parameters(), "weight_decay": 0.01},
            {"params": model.lins.parameters(), "weight_decay": 5e-4},
        ],
        lr=0.01,
    )
    while not run.stopping:
        model.train()
        optimizer.zero_grad()
        out = model(x, edge_index)
        loss = F.nll_loss(out[train_mask], y[train_mask])
        loss.backward()
        optimizer.step()
        run.log(loss=loss, samples=140)


@labelled(gpu="memory-latency-bound", cpu="healthy", needs=NEEDS)
def sage_of_a_whole_web(run: hoptui.Run, device: str) -> None:
    """In the manner of ogb's products/gnn.py: GraphSAGE on the whole graph, with few features for each node.

    The messages of the edges are gathered from random nodes and added to random nodes.
    """
    from torch_geometric.nn import GraphSAGE

    gpu = device != "cpu"
    num_nodes, num_edges = (2**24, 2**26) if gpu else (100_000, 500_000)
    edge_index = torch.randint(num_nodes, (2, num_edges), device=device)
    x = torch.randn(num_nodes, 4, device=device)
    y = torch.randint(4, (num_nodes,), device=device)
    model = GraphSAGE(4, 4, num_layers=2, out_channels=4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    while not run.stopping:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss, samples=num_nodes)


@labelled(gpu="transfer-bound", cpu="healthy", needs=NEEDS)
def clusters_of_wide_features(run: hoptui.Run, device: str) -> None:
    """In the manner of PyG's cluster_gcn_ppi.py: each cluster is moved to the device when its turn comes.

    The clusters lie in memory that is not pinned, and their nodes have many features.
    """
    from torch_geometric.data import Data
    from torch_geometric.nn import GraphConv

    num_nodes = 1_000_000 if device != "cpu" else 20_000
    train_data = [
        Data(
            x=torch.randn(num_nodes, 256),
            edge_index=torch.randint(num_nodes, (2, num_nodes)),
            y=torch.randint(40, (num_nodes,)),
        )
        for _ in range(3)
    ]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin1 = nn.Linear(256, 32)
            self.conv1 = GraphConv(32, 32)
            self.conv2 = GraphConv(32, 40)

        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            x = self.conv1(self.lin1(x), edge_index).relu()
            return self.conv2(x, edge_index)

    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    while not run.stopping:
        for data in train_data:
            data = data.to(device)  # here
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
            loss.backward()
            optimizer.step()
            run.log(loss=loss, samples=data.num_nodes)


def filter_tails(
    known: set[tuple[int, int, int]], head: int, rel: int, tail: int, num_nodes: int
) -> list[int]:
    """Return the candidates for the tail of a triple: those that make no known triple, and the right one."""
    candidates = [tail]
    for e in range(num_nodes):
        if (head, rel, e) not in known:  # here
            candidates.append(e)  # here  # noqa: PERF401
    return candidates


@torch.no_grad()
def calc_filtered_mrr(model: Any, known: set[tuple[int, int, int]], valid: Tensor, num_nodes: int) -> float:
    """Return the mean reciprocal rank of the right tails among the candidates."""
    device = model.node_emb.weight.device
    ranks = []
    for head, rel, tail in valid.tolist():
        candidates = filter_tails(known, head, rel, tail, num_nodes)  # here
        tails = torch.LongTensor(candidates).to(device)  # here
        heads, rels = torch.full_like(tails, head), torch.full_like(tails, rel)
        scores = model(heads, rels, tails)
        ranks.append(int((scores > scores[0]).sum()) + 1)
    return sum(1 / rank for rank in ranks) / len(ranks)


@labelled(gpu="host-bound", cpu="host-bound", needs=NEEDS, helpers=(filter_tails, calc_filtered_mrr))
def distmult_filtered_mrr(run: hoptui.Run, device: str) -> None:
    """In the manner of PyG's kge_fb15k_237.py, with the evaluation of DGL's rgcn/link.py after each batch.

    The evaluation asks of each node in Python whether it makes a known triple.
    """
    from torch_geometric.nn import DistMult

    num_nodes, num_relations = 14_541, 237
    head_index, tail_index = random_graph(num_nodes, 100_000)
    rel_type = torch.randint(num_relations, (len(head_index),))
    known = set(zip(head_index.tolist(), rel_type.tolist(), tail_index.tolist(), strict=True))
    valid = torch.stack([head_index, rel_type, tail_index], dim=1)[:2_000]
    model = DistMult(num_nodes, num_relations, hidden_channels=16).to(device)
    loader = model.loader(head_index, rel_type, tail_index, batch_size=1_000, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-6)
    while not run.stopping:
        for batch in loader:
            head, rel, tail = (each.to(device) for each in batch)
            optimizer.zero_grad()
            loss = model.loss(head, rel, tail)
            loss.backward()
            optimizer.step()
            chosen = valid[torch.randint(len(valid), (24,))]
            mrr = calc_filtered_mrr(model, known, chosen, num_nodes)  # here
            run.log(loss=loss, mrr=mrr, samples=len(head))
            if run.stopping:
                break
