package loop

import (
	"context"
	"errors"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// answering is Slurm as a round uses it: each answer, a refusal too, is progress of the
// round. A command that isn't answered is none.
type answering struct {
	job.Slurm
	progress func()
}

func (a answering) note(err error) {
	if !errors.Is(err, job.ErrDown) {
		a.progress()
	}
}

// Poll implements job.Slurm.
func (a answering) Poll(ctx context.Context) (*job.Snapshot, error) {
	s, err := a.Slurm.Poll(ctx)
	a.note(err)
	return s, err
}

// Update implements job.Slurm.
func (a answering) Update(ctx context.Context, u job.Update) error {
	err := a.Slurm.Update(ctx, u)
	a.note(err)
	return err
}

// UpdateAll implements job.Slurm.
func (a answering) UpdateAll(ctx context.Context, all []job.Update) []error {
	errs := a.Slurm.UpdateAll(ctx, all)
	for _, err := range errs {
		a.note(err)
	}
	return errs
}

// Bounds implements job.Slurm.
func (a answering) Bounds(ctx context.Context) (*job.Bounds, error) {
	b, err := a.Slurm.Bounds(ctx)
	a.note(err)
	return b, err
}

// Script implements job.Slurm.
func (a answering) Script(ctx context.Context, ref string) ([]byte, error) {
	script, err := a.Slurm.Script(ctx, ref)
	a.note(err)
	return script, err
}

// Describe implements job.Slurm.
func (a answering) Describe(ctx context.Context, refs []string) (map[string]job.Description, error) {
	d, err := a.Slurm.Describe(ctx, refs)
	a.note(err)
	return d, err
}

// Requeue implements job.Slurm.
func (a answering) Requeue(ctx context.Context, ref string) error {
	err := a.Slurm.Requeue(ctx, ref)
	a.note(err)
	return err
}
