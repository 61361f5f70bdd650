package job

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func TestWhichJobsAnErrorIsAbout(t *testing.T) {
	gres, gone := JobError{ErrRefused, "ESLURM_INVALID_GRES", "no such gres"},
		JobError{ErrNoJob, "ESLURM_INVALID_JOB_ID", "no such job"}
	refused := JobError{ErrRefused, CodeOther, "no job is named: slurmctld refused"}
	down := JobError{ErrDown, CodeOther, "scontrol: slurmctld does not answer"}
	for name, c := range map[string]struct {
		first, then error // of commands for jobs 1 and 2, and for job 3
		want        JobErrors
		kind        error
	}{
		"none": {nil, nil, JobErrors{}, nil},
		"all":  {fmt.Errorf("scontrol: %w", ErrDown), nil, JobErrors{"1": down, "2": down}, ErrDown},
		"one":  {fmt.Errorf("update: %w", JobErrors{"2": gres}), nil, JobErrors{"2": gres}, ErrRefused},
		"each": {JobErrors{"1": gone}, JobErrors{"3": gres}, JobErrors{"1": gone, "3": gres}, ErrRefused},
		"not sent, since the bridge ends or the gate opens": {
			context.Canceled,
			JobErrors{"3": gone},
			JobErrors{"1": {ErrDown, CodeOther, "context canceled"}, "2": {ErrDown, CodeOther, "context canceled"}, "3": gone},
			ErrDown,
		},
		"refused": {fmt.Errorf("no job is named: %w", ErrRefused), nil, JobErrors{"1": refused, "2": refused}, ErrRefused},
	} {
		got := JobErrors{}
		got.Add(c.first, []string{"1", "2"})
		got.Add(c.then, []string{"3"})
		must.Equal(t, got, c.want, name)
		must.Equal(t, errors.Is(got.Err(), c.kind), true, "%s: %v", name, got.Err())
	}
}

func TestRefusedChangesInWords(t *testing.T) {
	for want, r := range map[string]RefusedChanges{
		"Slurm refused to give a job its shares of a GPU, 4 times in the last day, job 5 last: Unspecified error " +
			"(SLURM_ERROR). 2 jobs were left to run without sharing": {
			Step: StepPrepare, Code: "SLURM_ERROR", Text: "Unspecified error", Times: 4, GivenUp: 2, Example: "5",
		},
		"Slurm agreed to let a job go from the gate, once in the last day, and didn't do it, for job 5 last": {
			Step: StepUngate, Code: CodeNotDone, Text: NotDone, Times: 1, Example: "5",
		},
	} {
		must.Equal(t, r.String(), want)
	}
}
