package prolog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Card is one of the node's GPUs or MIG instances, as the agent lists them for the hooks, which open no
// GPU themselves. Three ways of counting can differ: Slurm's, NVML's and the driver's.
type Card struct {
	Index     int     `json:"-"`            // Slurm's number, which the hooks find out; unknown = none
	NVMLIndex int     `json:"nvml_index"`   // NVML's, by PCI bus
	Minor     int     `json:"minor"`        // N of /dev/nvidiaN
	GI        int     `json:"gi,omitempty"` // GPU instance and compute instance, of a MIG instance
	CI        int     `json:"ci,omitempty"`
	UUID      string  `json:"uuid"`
	Exclusive bool    `json:"exclusive,omitempty"` // in the mode EXCLUSIVE_PROCESS
	Lost      bool    `json:"lost,omitempty"`      // the driver has lost it, and CUDA doesn't count it
	Model     string  `json:"model"`
	Arch      string  `json:"arch,omitempty"`
	MemMiB    float64 `json:"mem_mib,omitempty"`
	// Clients is how many MPS clients the card serves at a time, 0 = unknown. MemLimits: card and driver hold a client to
	// a part of the memory.
	Clients   int  `json:"mps_clients,omitempty"`
	MemLimits bool `json:"mps_mem_limits,omitempty"`

	files access // of a MIG instance, which the hooks find out
}

const cardsFile = "gpus.json"

// WriteCards lists the node's GPUs for the hooks.
func (d Dir) WriteCards(cards []Card) error {
	if err := d.Make(); err != nil {
		return fmt.Errorf("list the GPUs for the hooks: %w", err)
	}
	body, err := json.MarshalIndent(cards, "", "  ")
	if err != nil {
		return err
	}
	// Task prologs read it as the job's user.
	if err := put(d.path(cardsFile), append(body, '\n'), 0o644); err != nil {
		return fmt.Errorf("list the GPUs for the hooks: %w", err)
	}
	return nil
}

// Cards returns the node's GPUs as the agent wrote them down. Where it hasn't, the
// driver's own list under proc ("" = /proc) has to do.
func (d Dir) Cards(proc string) ([]Card, error) {
	var cards []Card
	err := readJSON(d.path(cardsFile), &cards)
	if err == nil {
		return cards, nil
	}
	files, gerr := filepath.Glob(filepath.Join(cmp.Or(proc, "/proc"), "driver/nvidia/gpus/*/information"))
	if gerr != nil || len(files) == 0 {
		return nil, err
	}
	for _, f := range files {
		body, rerr := os.ReadFile(filepath.Clean(f))
		if rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		if c, ok := parseInformation(string(body)); ok {
			cards = append(cards, c)
		}
	}
	for i := range cards {
		// The files are named, and sorted, by PCI bus.
		c := &cards[i]
		c.NVMLIndex, c.Lost = i, c.UUID == ""
	}
	if !slices.ContainsFunc(cards, func(c Card) bool { return c.UUID != "" }) {
		return nil, err
	}
	return cards, nil
}

// parseInformation reads /proc/driver/nvidia/gpus/*/information: lines "Name:
// value".
func parseInformation(text string) (Card, bool) {
	c := Card{Minor: -1}
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "Model":
			c.Model = value
		case "GPU UUID":
			c.UUID = value
		case "Device Minor":
			if n, err := strconv.ParseUint(value, 10, 16); err == nil {
				c.Minor = int(n)
			}
		}
	}
	// Without the right to read it the driver prints a UUID of question marks.
	if !strings.HasPrefix(c.UUID, "GPU-") || strings.Contains(c.UUID, "?") {
		c.UUID = ""
	}
	return c, c.Minor >= 0
}

// mig reports whether it is a MIG instance.
func (c Card) mig() bool { return strings.HasPrefix(c.UUID, "MIG-") }

// card returns the GPU with Slurm's number index.
func card(cards []Card, index int) (Card, bool) {
	i := slices.IndexFunc(cards, func(c Card) bool { return c.Index == index })
	if i < 0 {
		return Card{}, false
	}
	return cards[i], true
}
