package main

import (
	"sort"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// byName finds an application however its name is capitalised.
func byName(name string) (*rlcore.Profile, bool) {
	u := func(gpu, core, mem, pcie float64) rlcore.Use {
		return rlcore.Use{GPU: gpu, Core: core, MemMiB: mem, PCIeMBps: pcie}
	}
	d := map[string]rlcore.Profile{
		"lammps":    {DurationS: 120, PeriodS: 30, StepS: .25, Series: []rlcore.Use{u(.1, .05, 363, 3000), u(.3, .2, 4000, 3000), u(.5, .4, 8499, 3000), u(.7, .5, 7783, 1000)}},
		"gromacs":   {DurationS: 90, PeriodS: 90, StepS: .004, Series: []rlcore.Use{u(.35, .25, 300, 2000)}},
		"qmcpack":   {DurationS: 150, PeriodS: 50, StepS: .5, Series: []rlcore.Use{u(.25, .2, 200, 200), u(.55, .4, 200, 200), u(.85, .7, 5135, 200)}},
		"hoomd":     {DurationS: 70, PeriodS: 70, StepS: .001, Series: []rlcore.Use{u(.75, .5, 600, 50)}},
		"googlenet": {DurationS: 60, PeriodS: 60, StepS: .11, Series: []rlcore.Use{u(.6, .5, 3500, 900)}},
		"alexnet":   {DurationS: 50, PeriodS: 25, StepS: .03, Series: []rlcore.Use{u(.3, .2, 1500, 1500), u(.35, .25, 2500, 1500)}},
		"vgg11":     {DurationS: 80, PeriodS: 80, StepS: .25, Series: []rlcore.Use{u(.85, .7, 6500, 500)}},
		"vgg16":     {DurationS: 110, PeriodS: 110, StepS: .41, Series: []rlcore.Use{u(.9, .75, 7000, 400)}},
		"resnet50":  {DurationS: 90, PeriodS: 90, StepS: .26, Series: []rlcore.Use{u(.85, .65, 6500, 400)}},
		"resnet101": {DurationS: 110, PeriodS: 110, StepS: .42, Series: []rlcore.Use{u(.88, .7, 8000, 300)}},
		"resnet152": {DurationS: 130, PeriodS: 130, StepS: .62, Series: []rlcore.Use{u(.9, .7, 9500, 250)}},
	}
	name = strings.ToLower(name)
	p, ok := d[name]
	p.App = name
	return &p, ok
}

func names() []string {
	n := []string{"lammps", "gromacs", "qmcpack", "hoomd", "googlenet", "alexnet", "vgg11", "vgg16", "resnet50", "resnet101", "resnet152"}
	sort.Strings(n)
	return n
}
