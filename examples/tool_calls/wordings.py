"""What users write: the wordings to take demonstrations from, and others to test on.

In `CALLS`, `{argument}` is what the tool needs. In `REFUNDS`, `{article}` was bought `{days}` days ago.
"""

from __future__ import annotations

CALLS_TRAIN = {
    "weather": {
        "sun-now": "Is the sun out in {argument} right now?",
        "need-coat": "Do I need a warm coat for {argument} today?",
        "rain-there": "I hear that it is raining in {argument}. Is that so?",
        "weather-like": "What is the weather like in {argument}?",
        "forecast": "Give me the forecast for {argument}, please.",
        "picnic": "We plan a picnic in {argument}. Will it stay dry?",
    },
    "flight": {
        "next-plane": "When does the next plane to {argument} leave?",
        "fly-today": "I have to fly to {argument} today. At what time?",
        "departure": "Tell me the departure time of the {argument} flight.",
        "catch": "Which flight can I still catch to {argument}?",
        "take-off": "My plane goes to {argument}. When is take-off?",
        "airport": "How soon must I be at the airport to get to {argument}?",
    },
    "price": {
        "how-much": "How much is the {argument}?",
        "cost-of": "What does a {argument} cost in your shop?",
        "afford": "Can I afford that {argument} with fifty dollars?",
        "pay-for": "How many dollars must I pay for one {argument}?",
        "price-of": "Please tell me the price of the {argument}.",
        "cheap": "I want to buy a {argument}. Is it expensive?",
    },
    "order": {
        "where-is": "Where is my order {argument}?",
        "arrived-not": "Order {argument} has not arrived yet.",
        "status-of": "What is the status of order number {argument}?",
        "sent-already": "Was parcel {argument} sent already?",
        "waiting": "I am still waiting for {argument}, which I ordered last week.",
        "track": "Could you track {argument} for me? It is an order.",
    },
    "phone": {
        "call-person": "I would like to call {argument}. What is the number?",
        "number-of": "What is the phone number of {argument}?",
        "reach": "How can I reach {argument} by telephone?",
        "extension": "Which extension does {argument} have?",
        "ring": "I need to ring {argument} this afternoon.",
        "talk-to": "Connect me, I have to talk to {argument} on the phone.",
    },
}
"""Wordings for training, by tool and name."""

CALLS_HELD_OUT = {
    "weather": {
        "umbrella": "Should I take an umbrella when I walk around {argument}?",
        "cold": "Is it cold in {argument} this morning?",
        "how-weather": "How is the weather over in {argument}?",
        "snow": "Does it snow in {argument} at the moment?",
    },
    "flight": {
        "leave-for": "What time does my flight for {argument} leave?",
        "flights-to": "Are there flights to {argument} tonight?",
        "flying": "I am flying to {argument}, when do we start?",
        "plane-for": "Has the plane for {argument} gone?",
    },
    "price": {
        "costs": "Say what the {argument} costs.",
        "charge": "How much do you charge for this {argument}?",
        "price-please": "The price of your {argument}, please?",
        "spend": "What would I spend on a new {argument}?",
    },
    "order": {
        "shipped": "Has order {argument} been shipped?",
        "my-number": "My order number is {argument}, any news?",
        "when-comes": "When will I get order {argument}?",
        "look-into": "Please look into {argument}. I ordered it on Monday.",
    },
    "phone": {
        "give-number": "Give me the number for {argument} so that I can call.",
        "phoning": "I want to phone {argument}, under which number?",
        "telephone": "Do you have a telephone number for {argument}?",
        "speak": "May I speak with {argument}? Which number do I dial?",
    },
}
"""Wordings for testing, by tool and name. None is like one in `CALLS_TRAIN`."""

REFUNDS_TRAIN = {
    "bought-ago": "I bought this {article} {days} days ago. May I return it?",
    "money-back": "My {article} is {days} days old and I want my money back.",
    "had-for": "We have had the {article} for {days} days now. Is a refund possible?",
    "since": "It has been {days} days since I paid for a {article}. Can I give it back?",
    "no-longer": "{days} days after buying it I no longer like my {article}.",
    "came-in": "The {article} was purchased {days} days back. Do you still take it?",
    "too-big": "This {article} is too big. I got it {days} days before today.",
    "gift": "My aunt gave me a {article}; she bought it {days} days earlier. A refund, please.",
    "receipt": "The receipt for my {article} is {days} days old.",
    "broken": "After {days} days the {article} broke. Will you refund me?",
    "two-of-them": "I own two now, so take back the {article} from {days} days ago.",
    "mistake": "Buying the {article} was a mistake, {days} days have gone by.",
    "late": "Am I too late to return a {article} after {days} days?",
    "colour": "The colour of that {article} is wrong. It is {days} days since the sale.",
    "sale-date": "Date of sale: {days} days ago. Article: {article}. Refund?",
    "unused": "Unused {article}, purchase was {days} days ago, I would like to send it back.",
    "spouse": "My husband hates our {article}. We paid {days} days ago.",
    "still-time": "{days} days with the {article}: is there still time to bring it in?",
    "invoice": "Your invoice says {days} days. I do not want the {article} any more.",
    "regret": "I regret the {article}. I took it home {days} days ago.",
}
"""Wordings for training, by name."""

REFUNDS_HELD_OUT = {
    "can-return": "Can I return a {article} that I have owned for {days} days?",
    "not-happy": "Not happy with my {article}, {days} days old by now.",
    "sold-to-me": "{days} days ago you sold me a {article}, and I want the money.",
    "days-passed": "{days} days passed since I picked up the {article}. Refund?",
    "noise": "The {article} makes a noise. It was new {days} days ago.",
    "bring-back": "I will bring back the {article}. It is mine since {days} days.",
    "birthday": "For my birthday, {days} days ago, you sold us the {article}. Return it?",
    "wrong-size": "Wrong size of {article}! Bought {days} days ago, what now?",
    "ask-refund": "I ask for a refund of one {article}, age {days} days.",
    "exchange": "A {article}, paid {days} days before this message. Will I be refunded?",
    "card": "My card was charged {days} days ago, for a {article}. Undo it, please.",
    "moving": "We are moving and the {article} must go. It has been ours {days} days.",
    "daughter": "My daughter chose another {article}. Ours was bought {days} days ago.",
    "box": "The {article} is still in its box after {days} days. Do you take it?",
    "shop": "I stood in your shop {days} days ago and left with a {article}. Refund me.",
    "short": "{article}, {days} days, money back?",
    "second-thoughts": "Second thoughts about a {article}, {days} days too late?",
    "cheaper": "I saw the {article} cheaper elsewhere. I have yours for {days} days.",
    "online": "Online purchase {days} days ago: {article}. Do I get a refund?",
    "never-used": "I never used the {article}, and {days} days ago it was yours.",
}
"""Wordings for testing, by name. None is like one in `REFUNDS_TRAIN`."""
