package main

import "github.com/slurmbridge/slurmbridge/rlcore"

func byName(name string) (*rlcore.Profile, bool) {
	d := map[string]rlcore.Profile{
		"vgg16":   {DurationS: 200, PeriodS: 200, Series: []rlcore.Use{{GPU: .9, Core: .6, MemMiB: 5000, PCIeMBps: 800}}, StepS: .4},
		"alexnet": {DurationS: 100, PeriodS: 50, Series: []rlcore.Use{{GPU: .3, Core: .2, MemMiB: 1500, PCIeMBps: 800}, {GPU: .4, Core: .2, MemMiB: 2500, PCIeMBps: 800}}, StepS: .1},
	}
	p, ok := d[name]
	p.App = name
	return &p, ok
}

func names() []string { return []string{"alexnet", "vgg16"} }
