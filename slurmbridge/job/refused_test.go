package job

import (
	"errors"
	"fmt"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// oneJob is an error that names a job.
type oneJob struct {
	ref  string
	said JobError
}

func (e oneJob) Error() string                  { return e.said.Text }
func (e oneJob) Unwrap() error                  { return e.said.Kind }
func (e oneJob) JobErrors() map[string]JobError { return map[string]JobError{e.ref: e.said} }

func TestWhichJobsAnErrorIsAbout(t *testing.T) {
	gres, gone := JobError{ErrRefused, "ESLURM_INVALID_GRES", "no such gres"},
		JobError{ErrNoJob, "ESLURM_INVALID_JOB_ID", "no such job"}
	down := JobError{ErrDown, CodeOther, "scontrol: slurmctld does not answer"}
	for name, c := range map[string]struct {
		err  error
		want map[string]JobError
	}{
		"none":       {nil, nil},
		"all":        {fmt.Errorf("scontrol: %w", ErrDown), map[string]JobError{"1": down, "2": down}},
		"one of two": {fmt.Errorf("update: %w", oneJob{"2", gres}), map[string]JobError{"2": gres}},
		"each its own": {
			errors.Join(oneJob{"1", gone}, errors.Join(oneJob{"2", gres})),
			map[string]JobError{"1": gone, "2": gres},
		},
		"another's": {oneJob{"7", gres}, map[string]JobError{
			"1": {ErrRefused, CodeOther, "no such gres"},
			"2": {ErrRefused, CodeOther, "no such gres"},
		}},
		"ours and another": {errors.Join(oneJob{"7", gres}, oneJob{"1", gone}), map[string]JobError{"1": gone}},
	} {
		must.Equal(t, JobErrors(c.err, []string{"1", "2"}), c.want, name)
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
