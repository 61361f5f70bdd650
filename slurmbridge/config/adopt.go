package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/spf13/viper"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
)

const adoptKey = "adopt"

// ruleName is a partition's, an account's, a QOS', a user's or a reservation's: anything else could not be a word of the
// gate file.
var ruleName = regexp.MustCompile(`^[A-Za-z0-9_.@+-]{1,128}$`)

// from are the values of a rule's from.
var from = []string{"one-gpu", "per-node"}

// adoptRules reads the adopt section. Errors start with the setting's name.
func adoptRules(value any) ([]adopt.Rule, error) {
	if value == nil {
		return nil, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s %w", adoptKey, mismatch(value, "a list of rules, such as - {partition: gpu}"))
	}
	var out []adopt.Rule
	for i, entry := range list {
		at := fmt.Sprintf("%s, rule %d,", adoptKey, i+1)
		fields, ok := entry.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s %w", at, mismatch(entry, "a block such as {partition: gpu}"))
		}
		r := adopt.Rule{MaxSlowdown: adopt.DefaultMaxSlowdown}
		source := from[0]
		targets := map[string]target{
			"never": {&r.Never, nil}, "from": {&source, oneOf(from...)},
			"max_slowdown": {&r.MaxSlowdown, floatIn(1, 100)}, "grace": {&r.Grace, zeroOr(floatIn(0.01, 100))},
		}
		for _, name := range adopt.Names() {
			targets[name] = target{r.List(name), ruleNames}
		}
		if err := setBlock(at, " ", fields, targets); err != nil {
			return nil, err
		}
		r.PerNode = source == from[1]
		out = append(out, r)
	}
	return out, nil
}

func ruleNames(p any) error {
	list := *p.(*[]string)
	if len(list) == 0 {
		return errors.New("names nothing: leave it out for any")
	}
	for _, name := range list {
		if !ruleName.MatchString(name) {
			return fmt.Errorf("names %s, and takes letters, digits, '_', '.', '@', '+' and '-'", show(name))
		}
	}
	return nil
}

// ReadRules reads a file of rules: an adopt section by itself.
func ReadRules(file string) ([]adopt.Rule, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("rules can't be read: %w", err)
	}
	defer f.Close()
	v := viper.New()
	v.SetConfigType("yaml")
	if err := v.ReadConfig(f); err != nil {
		return nil, fmt.Errorf("%s: %s", file, oneLine(err))
	}
	rules, err := adoptRules(v.Get(adoptKey))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s: it has no rules (a list below adopt)", file)
	}
	return rules, nil
}

// AdoptPolicy is what the settings say about adoption, nil = nothing is adopted. uid returns the number of a user.
func (c *Config) AdoptPolicy(uid func(name string) (uint32, bool)) *adopt.Policy {
	if len(c.Adopt) == 0 {
		return nil
	}
	return &adopt.Policy{Rules: c.Adopt, Active: c.AdoptMode == "active", Percent: c.AdoptPercent, Charge: c.AdoptCharge == "shares", Delay: c.AdoptDelay, OutFile: c.AdoptOptOut, UID: uid}
}
