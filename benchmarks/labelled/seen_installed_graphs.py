"""Trainings of PyTorch Geometric: transforms at each access, small graphs, generated graphs, large tables."""

# ruff: noqa: N812 - names as in the scripts that are imitated

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoptui
from benchmarks.labelled.catalogue import labelled

NEEDS = ("torch_geometric",)


def _molecules(count: int, nodes: int, degree: int, width: int) -> list[Any]:
    """Return random graphs with a number to predict."""
    from torch_geometric.data import Data
    from torch_geometric.utils import to_undirected

    graphs = []
    for _ in range(count):
        edges = torch.randint(0, nodes, (2, nodes * degree // 2))
        ring = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
        edge_index = to_undirected(torch.cat([edges, ring], 1))
        graphs.append(Data(x=torch.randn(nodes, width), edge_index=edge_index, y=torch.randn(1)))
    return graphs


class GIN(nn.Module):
    """Layers of GINConv, a sum over each graph, and a head."""

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        from torch_geometric.nn import GINConv

        self.convs = nn.ModuleList()
        for i in range(layers):
            first = nn.Linear(width if i == 0 else hidden, hidden)
            mlp = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            self.convs.append(GINConv(mlp))
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_add_pool

        for conv in self.convs:
            x = F.relu(conv(x, edge_index))
        return self.head(global_add_pool(x, batch))  # type: ignore[no-any-return]


@labelled(gpu="data-bound", cpu="data-bound", needs=(*NEEDS, "scipy"))
def pyg_positional_encodings(run: hoptui.Run, device: str) -> None:
    """Positional encodings are a `transform` and no `pre_transform`: they are computed at each access.

    The eigenvectors of the Laplacian and 16 steps of a random walk of a graph with 300 nodes take more than
    10 ms, a batch of 16 graphs more than 160 ms. The network needs less than 30 ms.
    """
    import torch_geometric.transforms as T
    from torch_geometric.data import InMemoryDataset
    from torch_geometric.loader import DataLoader

    class Molecules(InMemoryDataset):  # type: ignore[misc]
        def __init__(self, transform: Any) -> None:
            super().__init__(None, transform)
            self.data, self.slices = self.collate(_molecules(64, 300, 4, 16))

    transform = T.Compose(
        [
            T.AddLaplacianEigenvectorPE(8, attr_name=None, is_undirected=True),
            T.AddRandomWalkPE(16, attr_name=None),
        ]
    )
    loader = DataLoader(Molecules(transform), batch_size=16, shuffle=True)
    model = GIN(16 + 8 + 16, 32, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while not run.stopping:
        for data in loader:  # here
            data = data.to(device)
            out = model(data.x, data.edge_index, data.batch)[:, 0]
            loss = F.l1_loss(out, data.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item(), samples=data.num_graphs)
            if run.stopping:
                break


@labelled(gpu="launch-bound", cpu="healthy", needs=NEEDS)
def pyg_virtual_adversarial(run: hoptui.Run, device: str) -> None:
    """In the manner of FLAG: three steps of ascent on a perturbation for each step of a deep GIN.

    On a GPU: 8 molecules of 24 nodes through 8 layers, three times forward and backward, are thousands of
    tiny kernels. On the CPU: 16 graphs of 200 nodes with 192 numbers each, which are work for the products.
    """
    from torch_geometric.data import Batch

    cpu = device == "cpu"
    graphs, nodes, hidden, layers = (16, 200, 192, 3) if cpu else (8, 24, 64, 8)
    batch = Batch.from_data_list(_molecules(graphs, nodes, 4, 32)).to(device)
    model = GIN(32, hidden, layers).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    m, step_size = 3, 1e-3
    while not run.stopping:
        opt.zero_grad()
        perturb = torch.empty_like(batch.x).uniform_(-step_size, step_size).requires_grad_()
        loss = F.mse_loss(model(batch.x + perturb, batch.edge_index, batch.batch)[:, 0], batch.y) / m
        for _ in range(m - 1):
            loss.backward()
            perturb.data.add_(step_size * perturb.grad.sign())  # type: ignore[union-attr]
            perturb.grad.zero_()  # type: ignore[union-attr]
            loss = F.mse_loss(model(batch.x + perturb, batch.edge_index, batch.batch)[:, 0], batch.y) / m
        loss.backward()
        opt.step()
        run.log(loss=loss.detach() * m, samples=graphs)


def graph_statistics(adjacency: Tensor) -> dict[str, Any]:
    """Return the clustering and the mean distance of a generated graph."""
    import networkx as nx

    graph = nx.from_numpy_array((adjacency > 0.5).numpy())  # here
    clustering = nx.average_clustering(graph)  # here
    lengths = [max(d.values()) for _, d in nx.all_pairs_shortest_path_length(graph, cutoff=4)]  # here
    return {"clustering": clustering, "radius": sum(lengths) / len(lengths)}


@labelled(gpu="host-bound", cpu="host-bound", needs=(*NEEDS, "networkx"), helpers=(graph_statistics,))
def pyg_vgae_generates_graphs(run: hoptui.Run, device: str) -> None:
    """A VGAE is trained, and after each step NetworkX looks at a graph that is drawn from its decoder.

    A dense graph of 150 nodes takes NetworkX more than 80 ms. The encoder of two layers needs less than 30
    ms.
    """
    from torch_geometric.nn import VGAE, GCNConv

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(16, 32)
            self.mu, self.logstd = GCNConv(32, 16), GCNConv(32, 16)

        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Any, Any]:
            x = self.conv(x, edge_index).relu()
            return self.mu(x, edge_index), self.logstd(x, edge_index)

    (data,) = _molecules(1, 150, 8, 16)
    data = data.to(device)
    model = VGAE(Encoder()).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    while not run.stopping:
        z = model.encode(data.x, data.edge_index)
        loss = model.recon_loss(z, data.edge_index) + model.kl_loss() / data.num_nodes
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            drawn = torch.bernoulli(model.decoder.forward_all(z)).triu(1)
        statistics = graph_statistics((drawn + drawn.T).cpu())
        run.log(loss=loss.item(), samples=data.num_nodes, **statistics)


@labelled(gpu="memory-latency-bound memory-bandwidth-bound", cpu="healthy", needs=NEEDS)
def pyg_lightgcn_all_edges(run: hoptui.Run, device: str) -> None:
    """LightGCN's propagation over all edges of a large bipartite graph, with few numbers for each node.

    On a GPU: messages of 100 million edges are gathered from random rows of 16 bytes and added to random
    rows, in tables of 500 MB, ten times the L2 cache. There is no product of matrices.
    """
    from torch_geometric.nn import LGConv

    nodes, edges, width = (60_000, 300_000, 16) if device == "cpu" else (32_000_000, 100_000_000, 4)
    edge_index = torch.randint(0, nodes, (2, edges), device=device)
    emb = nn.Parameter(torch.randn(nodes, width, device=device) * 0.1)
    conv = LGConv(normalize=False)
    opt = torch.optim.SGD([emb], lr=0.1)
    while not run.stopping:
        x = conv(conv(emb, edge_index), edge_index)
        users = torch.randint(0, nodes, (4096,), device=device)
        items, negatives = users.roll(1), torch.randint(0, nodes, (4096,), device=device)
        loss = -F.logsigmoid((x[users] * (x[items] - x[negatives])).sum(-1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss.item(), samples=4096)
