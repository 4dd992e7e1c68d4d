-- The GEMM layers of the model, captured or not, over all ranks.
-- layer: qualified module name without wrapper prefixes
-- raw_name: the module's own qualified name, wrappers included
-- class_name: class of the module
-- root: the model it belongs to
-- in_features: K of the GEMM
-- out_features: N of the GEMM
-- matched: whether the layer patterns took it
-- backend: how its operands are reached: modules | dispatch | transformer_engine
-- kind: what the layer is, such as Linear, Conv1D, parameter or attention
-- ranks: ranks whose models have it; NULL where they did not say
create or replace view layers as
select name as layer, raw_name, class_name, root, in_features, out_features, matched, backend, kind, ranks
from stored.layers;
