package policy

import (
	"fmt"
	"strings"
)

// Objective is what decisions keep small.
type Objective string

// The objectives.
const (
	// Turnaround is the mean time from a job's submission to its end.
	Turnaround Objective = "turnaround"
	// Makespan is the time until all jobs have ended.
	Makespan Objective = "makespan"
)

// Objectives names them.
func Objectives() []string { return []string{string(Turnaround), string(Makespan)} }

// ObjectiveNamed returns the objective of a name; the error about an unknown one lists the known ones.
func ObjectiveNamed(name string) (Objective, error) {
	switch o := Objective(name); o {
	case Turnaround, Makespan:
		return o, nil
	}
	return "", fmt.Errorf("there is no objective %q; there are %s", name, strings.Join(Objectives(), " and "))
}
