package spool

import (
	"context"
	"errors"
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
	// it is the controller's trouble, and not those records'.
	patience = 3
)

// Run sends what waits until ctx ends, oldest first, with growing pauses while
// the controller doesn't take it.
func (s *Spool) Run(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.RandomizationFactor = s.Retry, s.RetryMax, 0.5
	var said time.Time // when a trouble that lasts was logged
	for {
		s.moveToDisk()
		sent, err := s.flush(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait, wake := idle, s.wake
		switch {
		case err != nil:
			if sent > 0 {
				pause.Reset()
			}
			// Nothing cuts this pause short: a new record has no better chance, unless others' files are the trouble.
			if !errors.Is(err, errUnread) {
				wait, wake = pause.NextBackOff(), nil
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

// moveToDisk moves what waits in memory to the disk, once that takes it.
func (s *Spool) moveToDisk() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.folders[1:] {
		files, _ := f.list()
		for i := range files {
			it := &files[i]
			if !it.waits() {
				continue
			}
			if s.find(it.name).in == f {
				r, err := read(it.path())
				if err != nil {
					_ = s.unreadable(it, err)
					continue
				}
				if s.lay(s.folders[0], it.name, r) != nil {
					return
				}
			}
			s.unlink(it)
		}
	}
}

// flush sends all that waits; err is the first failure, errUnread where there is no other.
func (s *Spool) flush(ctx context.Context) (sent int, err error) {
	s.mu.Lock()
	names := s.names()
	s.mu.Unlock()
	failures := 0
	for _, name := range names {
		failed := s.deliver(ctx, name)
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

// itsOwn reports whether a failure may be one record's alone, so that the next
// is worth a try.
func itsOwn(err error) bool {
	var no *recordhttp.AnswerError
	return errors.As(err, &no) && (no.Status >= http.StatusInternalServerError || no.Status == http.StatusBadRequest ||
		no.Status == http.StatusRequestTimeout)
}

// deliver sends one record. It may be cut, moved or dropped meanwhile.
func (s *Spool) deliver(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.find(name)
	if it == nil {
		return nil
	}
	r, err := read(it.path())
	if err != nil {
		return s.unreadable(it, err)
	}
	s.mu.Unlock()
	err = s.Send(ctx, r)
	s.mu.Lock()
	if now := s.find(name); now != nil {
		it = now
	}
	result := "ok"
	switch {
	case errors.Is(err, recordhttp.ErrRefused):
		s.Log.Error("the controller refused a record; set aside", "file", it.path(), "err", err)
		s.setAside(it, refused)
		s.Metrics.dropped.WithLabelValues("refused").Inc()
		result, err = "refused", nil
	case ctx.Err() != nil && err != nil:
		return err
	case err != nil:
		result = "error"
	default:
		s.remove(it)
		s.Metrics.last.SetToCurrentTime()
	}
	s.Metrics.tries.WithLabelValues(result).Inc()
	return err
}

// The places where records wait.
const (
	disk   = "disk"
	memory = "memory"
)

// Metrics is what operations sees of delivery on a node, under the prefix
// gpuprof_.
type Metrics struct {
	folders     atomic.Pointer[[]*folder] // how full they are is read at each scrape
	series      prometheus.Counter
	dropped     *prometheus.CounterVec
	writeErrors *prometheus.CounterVec
	tries       *prometheus.CounterVec
	last        prometheus.Gauge
}

// NewMetrics registers the metrics of delivery with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	auto, m := promauto.With(reg), &Metrics{}
	for _, g := range []struct {
		name, help string
		of         func(f *folder, files []file, size int64) int64
	}{
		{"spool_records", "Records that wait for the controller", func(_ *folder, files []file, _ int64) (n int64) {
			for i := range files {
				if files[i].waits() {
					n++
				}
			}
			return n
		}},
		{
			"spool_bytes", "Size of what waits and of what was set aside",
			func(_ *folder, _ []file, size int64) int64 { return size },
		},
		{
			"spool_limit_bytes", "Size from which on series are dropped, then records",
			func(f *folder, _ []file, _ int64) int64 { return f.limit },
		},
	} {
		for i, place := range []string{disk, memory} {
			auto.NewGaugeFunc(prometheus.GaugeOpts{
				Namespace: "gpuprof", Name: g.name, Help: g.help + ", by place: disk, or memory while the disk takes none.",
				ConstLabels: prometheus.Labels{"place": place},
			}, func() float64 {
				all := m.folders.Load()
				if all == nil || i >= len(*all) {
					return 0
				}
				f := (*all)[i]
				files, size := f.list()
				return float64(g.of(f, files, size))
			})
		}
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		v := auto.NewCounterVec(prometheus.CounterOpts{Namespace: "gpuprof", Name: name, Help: help}, []string{label})
		for _, value := range values {
			v.WithLabelValues(value)
		}
		return v
	}
	m.series = auto.NewCounter(prometheus.CounterOpts{
		Namespace: "gpuprof", Name: "spool_series_dropped_total",
		Help: "Records with a series that was dropped for lack of space; their summaries were kept.",
	})
	m.dropped = counters("spool_records_dropped_total",
		"Records that the controller will not get, by reason: full (no space was left), unreadable (half a file), refused "+
			"(by the controller).", "reason", "full", "unreadable", "refused")
	m.writeErrors = counters("spool_write_errors_total",
		"Records that could not be written, by place; the next place was tried, or they were tried again.", "place", disk,
		memory)
	m.tries = counters("deliveries_total", "Tries to deliver a record, by result: ok, refused, error (it is tried again).",
		"result", "ok", "refused", "error")
	m.last = auto.NewGauge(prometheus.GaugeOpts{
		Namespace: "gpuprof", Name: "last_delivery_timestamp_seconds",
		Help: "When the controller last took a record, as a Unix time; 0 = not since the start.",
	})
	return m
}
