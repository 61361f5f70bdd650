package main

import (
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// byName finds an application of the catalogue however its name is capitalised.
func byName(name string) (*rlcore.Profile, bool) { return apps.ByName(strings.ToLower(name)) }

func names() []string { return apps.Names() }
