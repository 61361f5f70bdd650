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

// Card is a GPU or MIG instance of the node, as the agent lists it for the hooks, which open no GPU. Slurm, NVML and
// the driver may number cards differently.
type Card struct {
	Index     int     `json:"-"`            // Slurm's number, which the hooks determine; unknown = none
	NVMLIndex int     `json:"nvml_index"`   // NVML's, by PCI bus
	Minor     int     `json:"minor"`        // N of /dev/nvidiaN
	GI        int     `json:"gi,omitempty"` // GPU instance and compute instance, of a MIG instance
	CI        int     `json:"ci,omitempty"`
	UUID      string  `json:"uuid"`
	Exclusive bool    `json:"exclusive,omitempty"` // in the mode EXCLUSIVE_PROCESS
	Lost      bool    `json:"lost,omitempty"`      // the driver has lost it, and CUDA doesn't count it
	Model     string  `json:"model"`
	MemMiB    float64 `json:"mem_mib,omitempty"`
	// Clients is the number of MPS clients that the card serves at a time, 0 = unknown. MemLimits: card and driver can
	// limit a client's memory.
	Clients   int  `json:"mps_clients,omitempty"`
	MemLimits bool `json:"mps_mem_limits,omitempty"`

	files access // of a MIG instance, set by the hooks
}

const cardsFile = "gpus.json"

// WriteCards lists the node's GPUs for the hooks.
func (d Dir) WriteCards(cards []Card) error {
	body, err := json.MarshalIndent(cards, "", "  ")
	if err = errors.Join(err, d.Make()); err == nil {
		err = put(d.path(cardsFile), append(body, '\n'), 0o644) // task prologs read it as the job's user
	}
	if err != nil {
		return fmt.Errorf("list the GPUs for the hooks: %w", err)
	}
	return nil
}

// Cards returns the node's GPUs as the agent listed them, or without that list as the driver does under proc ("" =
// /proc).
func (d Dir) Cards(proc string) ([]Card, error) {
	var cards []Card
	err := readJSON(d.path(cardsFile), &cards)
	if err == nil {
		return cards, nil
	}
	known := false
	files, _ := filepath.Glob(filepath.Join(cmp.Or(proc, "/proc"), "driver/nvidia/gpus/*/information"))
	for _, f := range files { // sorted by PCI bus
		body, _ := os.ReadFile(filepath.Clean(f))
		if c, ok := parseInformation(string(body)); ok {
			c.NVMLIndex = len(cards)
			c.Lost = c.UUID == ""
			cards = append(cards, c)
			known = known || !c.Lost
		}
	}
	if !known {
		return nil, err
	}
	return cards, nil
}

// parseInformation reads /proc/driver/nvidia/gpus/*/information: lines "Name: value".
func parseInformation(text string) (c Card, ok bool) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		values[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	minor, err := strconv.ParseUint(values["Device Minor"], 10, 16)
	c = Card{Minor: int(minor), Model: values["Model"], UUID: values["GPU UUID"]}
	// Without the right to read it the driver prints a UUID of question marks.
	if !strings.HasPrefix(c.UUID, "GPU-") || strings.Contains(c.UUID, "?") {
		c.UUID = ""
	}
	return c, err == nil
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

// unknown is the index of a card that no number of Slurm's is known to mean.
const unknown = -1

// access holds the numbers of the files under /dev/nvidia-caps that give access to an instance.
type access struct{ gi, ci int }
