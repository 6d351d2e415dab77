"""What the tables of collectives and transfers are read as."""

from pathlib import Path

import numpy as np
import pytest

from lts.calibrate.fit import errors, held_out_s
from lts.calibrate.tables import collectives, p2p
from lts.hardware import Cluster

DATA = Path(__file__).parent / "data"
HEAD = "op,impl,dtype,n_gpus,n_nodes,link,bytes,time_us"
LONG_HEAD = "device,op,dtype,n_gpus,n_nodes,link,bytes,split,time_us_min,time_us"
MIB = 2**20


def read(folder, module, file, head, *rows):
    (folder / file).write_text("\n".join([head, *rows]) + "\n")
    return {(name, found.key): found for name, found in module.series(folder)}


def test_microseconds_and_the_shard_of_a_gather(tmp_path):
    found = read(
        tmp_path,
        collectives,
        "collectives_h200.csv",
        HEAD,
        "all_gather,nccl,fp16,4,1,nvlink,4096,7.5",
        "all_gather,nccl,int8,4,1,nvlink,8192,8.5",
    )
    series = found["h200", "all_gather/nccl/4"]
    assert list(series.sizes["nbytes"]) == [1024, 2048]
    assert series.time_s == pytest.approx([7.5e-6, 8.5e-6])
    assert list(series.sizes["members"]) == [4, 4]
    assert series.sizes["latency_s"] == pytest.approx([8.8e-6] * 2)  # 3.0 + 2 * 2.9 us
    assert list(series.sizes["bandwidth_bytes_per_s"]) == [340e9] * 2
    assert series.shapes[0] != series.shapes[1]


def test_reductions_of_one_byte_stand_apart(tmp_path):
    rows = [
        f"{op},nccl,{dtype},8,1,nvlink,4096,7.5"
        for op in ("all_reduce", "reduce_scatter", "all_to_all")
        for dtype in ("fp16", "int8")
    ]
    found = read(tmp_path, collectives, "collectives.csv", HEAD, *rows)
    assert {key: len(series.time_s) for (_, key), series in found.items()} == {
        "all_reduce/nccl/8": 1,
        "all_reduce/nccl_int8/8": 1,
        "reduce_scatter/nccl/8": 1,
        "reduce_scatter/nccl_int8/8": 1,
        "all_to_all/nccl/8": 2,
    }


@pytest.mark.parametrize(
    ("file", "name", "last"),
    [("collectives.csv", "h100", 64 * MIB), ("collectives_a100.csv", "a100", 4 * MIB)],
)
def test_long_all_reduces_of_an_engine_are_those_of_nccl(tmp_path, file, name, last):
    rows = [
        f"all_reduce,custom_vllm,bf16,8,1,nvlink,{nbytes},9.0"
        for nbytes in (1024, last, 2 * last)
    ]
    found = read(tmp_path, collectives, file, HEAD, *rows)
    own = found[name, "all_reduce/custom_vllm/8"]
    assert list(own.sizes["nbytes"]) == [1024, last]
    most = own.operator.parameters[-1]
    assert (most.name, most.start) == ("most_bytes", last)
    assert list(found[name, "all_reduce/nccl/8"].sizes["nbytes"]) == [2 * last]


def test_all_reduces_across_nodes(tmp_path):
    found = read(
        tmp_path,
        collectives,
        "collectives_vidur.csv",
        LONG_HEAD,
        "a100_dgx,all_reduce,fp16,8,2,internode,4096,train,59.0,60.0",
        "a100_dgx,all_reduce,fp16,2,2,internode,4096,train,39.0,40.0",
        "a100_dgx,all_reduce,fp16,8,1,nvlink,4096,train,20.0,21.0",
        "h100_dgx,all_reduce,fp16,8,1,nvlink,4096,train,20.0,21.0",
    )
    assert list(found) == [("a100", "all_reduce/internode")]
    series = found["a100", "all_reduce/internode"]
    assert series.time_s == pytest.approx([60e-6, 40e-6])
    assert list(series.sizes["inside"]) == [4, 1]
    assert list(series.sizes["across"]) == [2, 2]
    assert series.sizes["inside_s"] == pytest.approx([13.2e-6, 0])  # 7.2 + 2 * 3 us
    assert series.sizes["latency_s"] == pytest.approx([27e-6] * 2)


def test_transfers_take_the_link_they_are_measured_on(tmp_path):
    found = read(
        tmp_path,
        p2p,
        "p2p.csv",
        LONG_HEAD,
        "h100_dgx,p2p,fp16,2,1,nvlink,2048,train,5.0,6.0",
        "a100_dgx,p2p,fp16,2,2,internode,2048,train,16.0,24.0",
        "other,p2p,fp16,2,2,internode,2048,train,16.0,24.0",
    )
    assert sorted(found) == [("a100", "p2p/internode"), ("h100", "p2p/nvlink")]
    near, far = found["h100", "p2p/nvlink"], found["a100", "p2p/internode"]
    assert near.time_s == pytest.approx([6e-6])
    assert near.sizes["bandwidth_bytes_per_s"] == [340e9]
    assert far.time_s == pytest.approx([24e-6])
    assert far.sizes["bandwidth_bytes_per_s"] == [20e9]


def test_absent_files_are_no_series(tmp_path):
    assert not list(collectives.series(tmp_path))
    assert not list(p2p.series(tmp_path))


def test_sizes_that_were_held_out_are_met():
    series = {found.key: found for _, found in collectives.series(DATA)}
    chip = Cluster.preset("h100").chip
    some = [series[f"{kind}/nccl/4"] for kind in ("all_reduce", "all_gather")]
    predicted = np.concatenate([held_out_s(each, chip) for each in some])
    found = errors(predicted, np.concatenate([each.time_s for each in some]))
    assert found["median"] < 0.08  # each has 8 or 10 sizes, over six decades
