#!/usr/bin/env bash
# Explain a recipe as it is here and as it was at BASE, compare the two, and post the difference on PULL_REQUEST.
# Reads RECIPE, OPTIONS, FAIL_IF, BASE and PULL_REQUEST; ends with 1 if a limit is exceeded.
set -euo pipefail

read -ra options <<<"${OPTIONS:-}"
work=$(mktemp -d)
trap 'git worktree remove --force "$work/base" 2>/dev/null || true; rm -rf "$work"' EXIT

git rev-parse --quiet --verify "$BASE^{commit}" >/dev/null || git fetch --quiet --depth=1 origin "$BASE"
git worktree add --quiet --detach "$work/base" "$BASE"
outlay explain "$RECIPE" "${options[@]}" --json >"$work/after.json"
(cd "$work/base" && outlay explain "$RECIPE" "${options[@]}" --json >"$work/before.json")

limits=()
while IFS= read -r limit; do
  [[ -z "${limit// /}" ]] || limits+=(--fail-if "$limit")
done <<<"${FAIL_IF:-}"
# Without limits a difference is worth a comment, and no failure.
(cd "$work" && outlay diff before.json after.json "${limits[@]}" --markdown) >"$work/comment.md" && code=0 || code=$?
[[ $code -le 1 ]] || exit "$code"
[[ ${#limits[@]} -gt 0 ]] || code=0

[[ -z "${GITHUB_STEP_SUMMARY:-}" ]] || cat "$work/comment.md" >>"$GITHUB_STEP_SUMMARY"
if [[ -n "${PULL_REQUEST:-}" ]]; then
  gh pr comment "$PULL_REQUEST" --edit-last --create-if-none --body-file "$work/comment.md"
fi
exit "$code"
