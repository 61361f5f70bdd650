package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// setup is the stage of one run.
func (o *options) setup(share bool) cluster.Setup {
	s := cluster.Setup{Scale: o.scale, Build: o.build}
	if share {
		s.Policy, s.Lua, s.Cold = "dqn", o.lua, o.cold
		if o.objective != "" {
			s.Settings = []string{"objective: " + o.objective}
		}
	}
	return s
}

// measure runs the workload once.
func measure(ctx context.Context, o options, names []string, share bool) (res *result, err error) {
	title, gres := "whole GPUs", "gpu:titanxp:1"
	if share {
		title, gres = "bridged", "gpu:shared"
	}
	s, err := cluster.Start(ctx, o.setup(share))
	if err != nil {
		return nil, err
	}
	defer func() {
		if o.keep && share {
			s.Stop()
			fmt.Println("kept:", s.Dir)
			return
		}
		err = s.CloseAfter(ctx, err)
	}()
	p := newProgress(title, len(names))
	ran, err := s.Do(ctx, cluster.Work{Apps: names, Gres: gres, Progress: func(ended, running int, gpu *gpusim.Snapshot) {
		note := ""
		if gpu != nil {
			note = fmt.Sprintf("(GPU %3.0f %%, %5.0f MiB)", 100*gpu.GPU, gpu.MemMiB)
		}
		p.at(ended, running, note)
	}})
	if err != nil {
		return nil, err
	}
	if res, err = figures(ran, o.scale); err != nil || !share {
		return res, err
	}
	if res.bridge, err = s.Ask(ctx); err == nil && o.after != nil {
		err = o.after(ctx, s)
	}
	return res, err
}

// figures sums up what became of the jobs.
func figures(ran *cluster.Ran, scale float64) (*result, error) {
	before, after := ran.Before, ran.After
	res := &result{OOM: int(after.OOM - before.OOM), ends: map[int]float64{}}
	var last time.Time
	for i := range ran.Jobs {
		j := &ran.Jobs[i]
		if !j.Finished() {
			res.JobsFailed++
			continue
		}
		res.JobsCompleted++
		res.ends[i] = j.Ended.Sub(ran.Began).Seconds() * scale
		res.MeanTurnaroundS += res.ends[i]
		if j.SoloS > 0 {
			res.slowdowns = append(res.slowdowns, j.GPUS/j.SoloS)
		}
		if j.Ended.After(last) {
			last = j.Ended
		}
	}
	if res.JobsCompleted == 0 {
		return nil, errors.New("no job completed")
	}
	res.MeanTurnaroundS /= float64(res.JobsCompleted)
	res.MakespanS = last.Sub(ran.Began).Seconds() * scale
	res.GPUUtil = (after.BusyS - before.BusyS) / res.MakespanS
	res.MemUtil = (after.MemMiBS - before.MemMiBS) / after.MemTotalMiB / res.MakespanS
	return res, nil
}

// lateness compares the ends of the jobs, applications of these names, that completed in both.
func lateness(plain, bridged *result, names []string, scale float64) (l cluster.Lateness) {
	for i, name := range names {
		end, ended := bridged.ends[i]
		before, ok := plain.ends[i]
		if p, known := apps.ByName(name); ended && ok && known {
			l.Compare(end, before, p.DurationS, scale)
		}
	}
	return l
}
