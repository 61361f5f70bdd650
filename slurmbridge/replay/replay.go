// Package replay makes the simulator's jobs of runs: of a site's own runs, which receipts replay, and of a trace, on
// which the laboratory compares policies.
package replay

import (
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/hostlist"
)

// Run completes a run of which only this is known: when it was submitted, s since 1970 or since any other time that its
// trace counts from; how long it took alone, s, 0 = unknown; and its time limit, s, 0 = none.
func Run(r history.Run, submitS, tookS, limitS float64) history.Run {
	whole, part := math.Modf(submitS)
	r.Ready = time.Unix(int64(whole), int64(math.Round(part*1e9)))
	r.Start = r.Ready
	r.End = r.Start.Add(time.Duration(math.Round(tookS * 1e9)))
	r.Ending.LimitS = limitS
	return r
}

// Arrival returns a run as the simulator's job, which comes as long after first as the run became ready. alone is the
// run's use of a GPU over its time without sharers. A run of several GPUs doesn't share.
func Arrival(r *history.Run, first time.Time, alone *rlcore.Profile) sim.Arrival {
	s := sim.Arrival{Job: r.Job(), Truth: alone}
	s.ID = r.Ref
	s.SubmitS = max(0, r.Ready.Sub(first).Seconds())
	s.LimitS = r.OwnLimitS()
	if perNode, nodes := GPUs(r); perNode*nodes > 1 {
		s.Foreign = true
		s.PerNode = perNode
		s.Nodes = nodes
	}
	return s
}

// GPUs returns how many GPUs a run held on each of its nodes, 0 = the numbers differ, and on how many nodes.
func GPUs(r *history.Run) (perNode, nodes int) {
	nodes = max(1, len(r.Nodes), len(hostlist.Names(r.Node)))
	if len(r.GPUs)%nodes > 0 {
		return 0, nodes
	}
	return max(1, r.WholeGPUs, len(r.GPUs)/nodes), nodes
}
