package main

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// memory serves the memory limits of jobs that share.
func (w *wired) memory(mux *http.ServeMux, margin float64) {
	mux.Handle("GET "+httpapi.MemoryPath, &httpapi.Memory{Profile: w.profile, Margin: margin})
}

// profile returns the profile of the application that was recognised in a job, nil =
// none or not that user's job. One made from relatives of other sizes isn't good enough
// to hold a job to.
func (w *wired) profile(ctx context.Context, ref, user string) (*rlcore.Profile, error) {
	if id, err := strconv.ParseInt(ref, 10, 64); err == nil {
		// A node knows an array task by its number only.
		now := time.Now()
		if ref, err = w.journal.TaskName(ctx, id, now, now); err != nil {
			return nil, err
		}
	}
	owner, app, err := w.store.AppOf(ctx, ref)
	if err != nil || user != "" && user != owner {
		return nil, err
	}
	return w.store.Known(ctx, owner, app)
}
