package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
)

const (
	// idle is the time between two looks where nothing calls for one.
	idle = time.Minute
	// sayAgain is how often a trouble that lasts is logged.
	sayAgain = 10 * time.Minute
	// patience is how many records in a row the controller may fail to keep before
	// it is the controller's trouble, and not the records'.
	patience = 3
)

// Run sends what waits until ctx ends, oldest first, with growing pauses while the controller doesn't take it.
func (s *Spool) Run(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = s.Retry
	pause.MaxInterval = s.RetryMax
	pause.RandomizationFactor = 0.5
	var said time.Time // when a trouble that lasts was logged
	for {
		sent, err := s.flush(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := idle
		wake := s.wake
		switch {
		case err != nil:
			if sent > 0 {
				pause.Reset()
			}
			// Nothing cuts this pause short: a new record has no better chance, unless only files of old ones are the trouble.
			if !errors.Is(err, errUnread) {
				wait = pause.NextBackOff()
				wake = nil
			}
			if time.Since(said) > sayAgain {
				s.Log.Warn("records wait for the controller; tried again until it takes them", "waiting", s.Waiting(), "err", err)
				said = time.Now()
			}
		case !said.IsZero():
			s.Log.Info("the controller takes records again", "sent", sent)
			said = time.Time{}
			pause.Reset()
		default:
			pause.Reset()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		case <-wake:
			timer.Stop()
		}
	}
}

// flush sends all that waits; err is the first failure, errUnread where there is no other.
func (s *Spool) flush(ctx context.Context) (sent int, err error) {
	failures := 0
	for _, path := range s.waiting() {
		failed := s.deliver(ctx, path)
		if failed == nil {
			failures = 0
			sent++
			continue
		}
		if err == nil || errors.Is(err, errUnread) {
			err = failed
		}
		if errors.Is(failed, errUnread) {
			continue
		}
		if failures++; failures == patience || !itsOwn(failed) || ctx.Err() != nil {
			break
		}
	}
	return sent, err
}

// itsOwn reports whether a failure may be one record's alone, so that the next is worth a try.
func itsOwn(err error) bool {
	var no *recordhttp.AnswerError
	return errors.As(err, &no) && (no.Status >= http.StatusInternalServerError || no.Status == http.StatusBadRequest ||
		no.Status == http.StatusRequestTimeout)
}

// errUnread says that the disk didn't give a record's file, which it may do later. Other records are sent meanwhile.
var errUnread = errors.New("read spool")

// deliver sends one record. Meanwhile it may be replaced, or removed for want of space.
func (s *Spool) deliver(ctx context.Context, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errHalf):
		s.Log.Error("a record can't be read; set aside", "file", path, "err", err)
		s.setAside(path, unreadable)
		s.Metrics.dropped.WithLabelValues("unreadable").Inc()
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	s.mu.Unlock()
	err = s.Send(ctx, r)
	s.mu.Lock()
	result := "ok"
	switch {
	case errors.Is(err, recordhttp.ErrRefused):
		s.Log.Error("the controller refused a record; set aside", "file", path, "err", err)
		s.setAside(path, refused)
		s.Metrics.dropped.WithLabelValues("refused").Inc()
		result = "refused"
		err = nil
	case ctx.Err() != nil && err != nil:
		return err
	case err != nil:
		result = "error"
	default:
		s.remove(path)
	}
	s.Metrics.tries.WithLabelValues(result).Inc()
	return err
}

// Metrics is what operations sees of delivery on a node, under the prefix gpuprof_.
type Metrics struct {
	spool   atomic.Pointer[Spool] // how full it is is read at each scrape
	dropped *prometheus.CounterVec
	tries   *prometheus.CounterVec
}

// NewMetrics registers the metrics of delivery with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto := promauto.With(reg)
	m := &Metrics{}
	gauge := func(name, help string, of func(s *Spool) float64) {
		auto.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gpuprof", Name: name, Help: help}, func() float64 {
			if s := m.spool.Load(); s != nil {
				return of(s)
			}
			return 0
		})
	}
	gauge("spool_records", "Records that wait for the controller.",
		func(s *Spool) float64 { return float64(s.Waiting()) })
	gauge("spool_bytes", "Size of what waits and of what was set aside.",
		func(s *Spool) float64 { _, size := s.list(); return float64(size) })
	gauge("spool_limit_bytes", "Size from which on the oldest records are dropped.",
		func(s *Spool) float64 { return float64(s.Limit) })
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		v := auto.NewCounterVec(prometheus.CounterOpts{Namespace: "gpuprof", Name: name, Help: help}, []string{label})
		for _, value := range values {
			v.WithLabelValues(value)
		}
		return v
	}
	m.dropped = counters("spool_records_dropped_total",
		"Records that the controller will not get, by reason: full (no space was left), unreadable (half a file), refused "+
			"(by the controller).", "reason", "full", "unreadable", "refused")
	m.tries = counters("deliveries_total", "Tries to deliver a record, by result: ok, refused, error (it is tried again).",
		"result", "ok", "refused", "error")
	return m
}
